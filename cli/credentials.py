"""What can travel as a credential."""


def is_sendable(credential: str) -> bool:
    """Whether gRPC's metadata can carry it: printable ASCII, and not nothing."""
    return credential != "" and credential.isascii() and credential.isprintable()
