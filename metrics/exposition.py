"""Serves a process's metrics over HTTP, in Prometheus' text format, at /metrics."""

from threading import Thread
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


class MetricsServer:
    """A running endpoint. Stopping twice is harmless."""

    def __init__(self, server: WSGIServer, thread: Thread, host: str) -> None:
        self._server: WSGIServer | None = server
        self._thread = thread
        self.host = host
        self.port: int = server.server_port

    @classmethod
    def start(cls, registry: CollectorRegistry, listen: str) -> Self:
        """Listen on `listen`, "host:port"; port 0 takes a free one, to be read from `port`.

        Raises OSError, naming the address, if it cannot be had.
        """
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            server, thread = start_http_server(int(port), addr=host, registry=registry)
        except OSError as error:
            raise OSError(error.errno, f"cannot serve metrics on {listen}: {error.strerror}") from error
        return cls(server, thread, host)

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
