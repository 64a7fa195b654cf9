"""The HTTP server of a gateway: its socket, its connections, and how it stops."""

import asyncio
import contextlib
import logging
import socket
import ssl

from uvicorn import Config
from uvicorn.server import ServerState

from gateway.config import HttpConfig
from gateway.http.boundary import HttpBoundary
from gateway.http.protocol import BoundedProtocol
from metrics.listening import why_not_free

# Requests that were told to end get this long to say so before their connections are cut.
_LAST_WORDS_S = 0.2
_BACKLOG = 1024


class HttpServer:
    """Owns the listening socket. Belongs to the event loop; no signals, no threads, no logs of its own."""

    def __init__(self, config: HttpConfig, boundary: HttpBoundary, ssl_context: ssl.SSLContext | None) -> None:
        """`ssl_context` None: plain text."""
        self._config = config
        self._ssl_context = ssl_context
        self._state = ServerState()
        self._uvicorn = Config(
            boundary,
            lifespan="off",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type] # seconds, whole or not
        )
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> int:
        """Listen and return the port. Raises OSError, naming the address, if it cannot be had."""
        listening = _bound(listen)
        self._uvicorn.load()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listening,
            backlog=_BACKLOG,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._config.head_timeout_s if self._ssl_context is not None else None,
        )
        port: int = listening.getsockname()[1]
        return port

    def _connection(self) -> BoundedProtocol:
        return BoundedProtocol(self._config, self._uvicorn, self._state)

    def drain(self) -> None:
        """Close connections that wait for a request now, the others behind their answers."""
        for connection in list(self._state.connections):
            connection.shutdown()

    async def stop(self) -> None:
        """End what still runs, and close all connections. Stopping twice is harmless."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self.drain()
        for end in (lambda task: None, asyncio.Task.cancel):
            tasks = set(self._state.tasks)
            for task in tasks:
                end(task)
            if tasks:
                await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await server.wait_closed()


def _bound(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    listening = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.setblocking(False)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise OSError(f"cannot listen on {listen}: {why_not_free(listen) or error.strerror}") from error
    return listening
