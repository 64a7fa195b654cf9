"""Serves what a process says of itself over plain HTTP: its metrics, in Prometheus' text format, and its checks.

    GET /metrics      the registry
    GET /livez, ...   200 "ok", or 503 with a line that says why not
    anything else     404

Each connection has a thread of its own, so that whoever reads slowly keeps nobody else from an answer.
"""

import socket
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Check = Callable[[], str | None]
"""Returns why not, in a line, or None if all is well. Called from any thread."""

_PATIENCE_S: Final = 30.0  # with a client that sends or takes nothing


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

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        check = checks.get(path)
        if check is None:
            return _text(start_response, "404 Not Found", f"there is {', '.join(['/metrics', *checks])}")
        reason = _why_not(check)
        return _text(start_response, "200 OK" if reason is None else "503 Service Unavailable", reason or "ok")

    return app


def _why_not(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that fails is one that was not passed
        return f"the check failed: {type(error).__name__}"


def _text(start_response: "StartResponse", status: str, line: str) -> Iterable[bytes]:
    body = f"{line}\n".encode()
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that went wrong is its client's business."""
