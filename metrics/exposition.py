"""Serves what a process says of itself over plain HTTP: its metrics, in Prometheus' text format, and its checks.

    GET /metrics      the registry; to a Prometheus server, with new series at 0 first (`first_at_zero`)
    GET /livez, ...   200 "ok", or 503 with a line that says why not
    another path      404
    another method    405; HEAD is GET without a body

Each connection has a thread of its own, so that whoever reads slowly keeps nobody else from an answer. There are so
many at most, of which the oldest gives way: nobody needs a credential to connect, and all of it is the process's.
"""

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from metrics.first_at_zero import FirstAtZero

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Check = Callable[[], str | None]
"""Returns why not, in a line, or None if all is well. Called from any thread."""

MAX_CONNECTIONS: Final = 256
_PATIENCE_S: Final = 30.0  # with a client that sends or takes nothing
_METHODS: Final = ("GET", "HEAD")
# Prometheus sends it with each scrape, and nobody who only looks does.
_OF_PROMETHEUS: Final = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"


class MetricsServer:
    """A running endpoint. Stopping twice is harmless."""

    def __init__(self, server: WSGIServer, host: str) -> None:
        self._server: WSGIServer | None = server
        self._thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.host = host
        self.port: int = server.server_port

    @classmethod
    def start(cls, registry: CollectorRegistry, listen: str, checks: Mapping[str, Check] | None = None) -> Self:
        """Listen on `listen`, "host:port"; port 0 takes a free one, to be read from `port`. `checks` are by path.

        Raises OSError, naming the address, if it cannot be had.
        """
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            server = _Server.on(host, int(port))
        except OSError as error:
            raise OSError(error.errno, f"cannot serve metrics on {listen}: {error.strerror}") from error
        server.set_app(_routes(registry, checks or {}))
        return cls(server, host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _routes(registry: CollectorRegistry, checks: Mapping[str, Check]) -> "WSGIApplication":
    metrics = make_wsgi_app(registry)
    at_zero = FirstAtZero(registry)
    # One at a time: each competes with whatever the process does for the interpreter.
    writing = Lock()

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path != "/metrics" and path not in checks:
            return _text(start_response, "404 Not Found", f"there is {', '.join(['/metrics', *checks])}")
        if environ["REQUEST_METHOD"] not in _METHODS:
            return _text(start_response, "405 Method Not Allowed", "use GET", ("Allow", ", ".join(_METHODS)))
        if path == "/metrics":
            scrapes = environ["REQUEST_METHOD"] == "GET" and _OF_PROMETHEUS in environ
            with writing:
                page = make_wsgi_app(at_zero.of(environ["REMOTE_ADDR"])) if scrapes else metrics
                written: Iterable[bytes] = page({**environ, "REQUEST_METHOD": "GET"}, start_response)
            return written
        reason = _why_not(checks[path])
        return _text(start_response, "200 OK" if reason is None else "503 Service Unavailable", reason or "ok")

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = answer(environ, start_response)
        return () if environ["REQUEST_METHOD"] == "HEAD" else body

    return app


def _why_not(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that fails is one that was not passed
        return f"the check failed: {type(error).__name__}"


def _text(start_response: "StartResponse", status: str, line: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    body = f"{line}\n".encode()
    told = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers]
    start_response(status, told)
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing: probes and scrapes come every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    @classmethod
    def on(cls, host: str, port: int) -> "_Server":
        """Raises OSError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        of_family = type("_ServerOfFamily", (cls,), {"address_family": family})
        server: _Server = of_family(address[:2], _Handler)
        return server

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._connections: dict[socket.socket, None] = {}  # the oldest first
        self._connecting = Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Listen without asking DNS for this machine's name, which may take half a minute, and which nobody reads."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connecting:
            self._connections[request] = None
            oldest = next(iter(self._connections)) if len(self._connections) > MAX_CONNECTIONS else None
            if oldest is not None:
                del self._connections[oldest]
                _hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connecting:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that went wrong is its client's business."""


def _hang_up(connection: socket.socket) -> None:
    """End whatever its thread waits for; that closes it."""
    with suppress(OSError):  # the client has gone already
        connection.shutdown(socket.SHUT_RDWR)
