"""A port is hung up: who is connected notices, nobody else gets in, and other ports are left alone."""

import socket
from collections.abc import Iterator

import pytest

from transport.connections import hang_up


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if request.param == "::1" else socket.AF_INET
    with socket.socket(family) as made:
        made.bind((request.param, 0))
        made.listen()
        made.settimeout(10)
        yield made


def connected(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname()[:2], timeout=10)
    server, _ = listener.accept()
    return client, server


def test_what_was_written_arrives_and_then_the_connection_ends(listener: socket.socket) -> None:
    client, server = connected(listener)
    with client, server:
        server.sendall(b"last words")
        assert hang_up(listener.getsockname()[1]) >= 1
        assert client.recv(100) == b"last words"
        assert client.recv(100) == b""


def test_nobody_gets_in_afterwards(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert hang_up(port) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname()[:2], timeout=10)
    assert hang_up(port) == 0


def test_other_ports_and_ones_own_calls_are_left_alone(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        client, server = connected(other)
        with client, server:
            hang_up(listener.getsockname()[1])
            server.sendall(b"still here")
            assert client.recv(100) == b"still here"
