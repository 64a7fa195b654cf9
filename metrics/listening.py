"""Says why an address cannot be listened on, which gRPC does not: for the message of any server of a process."""

import socket


def why_not_free(listen: str) -> str | None:
    """Return why nobody can listen on HOST:PORT now, in the system's words, or None if one can."""
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: an address whose last connections linger is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
