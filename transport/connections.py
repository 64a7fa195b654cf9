"""Ends a server of this process towards its clients as if the process had died: they know what to make of that.

A gRPC server that shuts down answers calls that reach it meanwhile with CANCELLED, which no client may take for "try
again". A connection that ends makes them UNAVAILABLE, and so does a port where nobody listens.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

_FOLDER = Path("/proc/self/fd")


def hang_up(port: int) -> int:
    """Let nobody in on this TCP port any more, end every connection that came in there, and return how many did.

    What was written to a socket is sent; what its owner has yet to write is not. gRPC writes a line about its listener
    to standard error. Where there is no /proc nothing is done.
    """
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        connections: list[socket.socket] = []
        for found in _sockets(port):
            stack.enter_context(found)
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            (listeners if listens else connections).append(found)
        for listener in listeners:  # first: who is cut off comes back at once
            _shut(listener)
        # Some may have come in after the first look, and before the last listener was shut.
        connections += [stack.enter_context(found) for found in _sockets(port)]
        return sum(_shut(connection) for connection in connections)


def _shut(found: socket.socket) -> bool:
    try:
        found.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended already
        return False
    return True


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yield the sockets that have this port on our side, as ones of our own that lead to the same connections."""
    for name in os.listdir(_FOLDER) if _FOLDER.exists() else ():
        with suppress(OSError):  # it was closed in between
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found = socket.socket(fileno=os.dup(int(name)))
                if _is_at(found, port):
                    yield found
                else:
                    found.close()


def _is_at(found: socket.socket, port: int) -> bool:
    if found.family not in {socket.AF_INET, socket.AF_INET6} or found.type != socket.SOCK_STREAM:
        return False
    try:
        return bool(found.getsockname()[1] == port)
    except OSError:
        return False
