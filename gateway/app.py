"""One gateway process: its parts, and the order in which they start and stop."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Self

import structlog

from gateway.assembly.fronts import Fronts
from gateway.assembly.identity import Identity, server_tls
from gateway.assembly.serving import Serving
from gateway.assembly.store import SharedStore
from gateway.config import GatewayConfig
from gateway.errors import UnavailableError
from gateway.observer import GatewayObserver, NullObserver
from gateway.quota.usage_log import UsageLog
from gateway.rpc.server import ADMIN, INFERENCE
from metrics.exposition import MetricsServer
from metrics.gateway import GatewayMetrics
from metrics.loop import LoopWatch
from metrics.version import own_version
from tracing.calls import NoTracer, Tracer
from tracing.config import TracingConfig
from tracing.opening import CLOSE_S, open_sink, tracer_for

_log = structlog.get_logger(__name__)

_LAST_LINES_S: Final = 5.0  # for what the usage log has yet to write


class GatewayApp:
    """A gateway in this process: `start`, serve, `stop`. Make, start and stop it inside one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        observer: GatewayObserver | None = None,
        on_serving: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        """`on_serving` is called whenever a worker has come.

        Raises ValueError where the configuration lacks something.
        """
        self._config = config
        self._on_serving = on_serving
        self.port = 0  # known after `start`, as is the next one
        self._http_port = 0
        self._serves = False  # from the end of `start` to the beginning of `stop`
        observer = observer or NullObserver()
        self._tls = server_tls(config.tls, observer)
        self.store = SharedStore(config, observer)
        self.identity = Identity(config, self.store, observer)
        self.serving = Serving(config, self.store, self.identity, observer)
        tracer = tracer or NoTracer()
        self.fronts = Fronts(config, self.store, self.identity, self.serving, self._tls, observer, tracer)
        self._tasks: list[asyncio.Task[None]] = []  # what runs beside the servers, from `start` to `stop`

    @property
    def address(self) -> str:
        """Where the gateway listens, once started."""
        return f"{self._config.listen.rpartition(':')[0]}:{self.port}"

    @property
    def http_address(self) -> str | None:
        """Where the gateway listens for HTTP, once started; None where it does not."""
        listen = self._config.http.listen
        return f"{listen.rpartition(':')[0]}:{self._http_port}" if listen is not None else None

    @property
    def ready(self) -> bool:
        """Whether a worker is connected."""
        return self.serving.fleet.ready

    def why_not_ready(self) -> str | None:
        """Return why no request should be sent here, or None. From any thread."""
        if not self._serves:
            return "the gateway is starting or draining"
        return None if self.ready else "no worker is connected"

    async def start(self) -> None:
        """Listen, and begin to connect to the workers. Raises OSError if the address or the usage log cannot be had.

        Neither workers nor Redis need to be there: until they are, calls get UNAVAILABLE.
        """
        health, fronts, store, usage_log = self.fronts.health, self.fronts, self.store, self.serving.usage_log
        if usage_log is not None:
            usage_log.start()
        health.set("", serving=True)
        health.set(INFERENCE, serving=False)
        if self.identity.operators is not None:
            health.set(ADMIN, serving=True)
        self.port = await fronts.grpc.start(self._config.listen)
        if fronts.http is not None and self._config.http.listen is not None:
            try:
                self._http_port = await fronts.http.start(self._config.http.listen)
            except OSError:
                await fronts.grpc.stop()
                raise
        self.serving.fleet.start(self._workers_changed)
        self.serving.quotas.start()
        serving = self.serving
        runs = (store.reach, store.changes, serving.control, serving.discovery, self._tls, self.identity.key_ring)
        self._tasks = [asyncio.create_task(each.run()) for each in runs if each is not None]
        self._serves = True
        workers = [link.address for link in serving.fleet.links()]
        _log.info("gateway started", address=self.address, workers=workers, discovery=self._config.discovery.source)

    def _workers_changed(self) -> None:
        self.fronts.health.set(INFERENCE, serving=self.ready)
        self.serving.control.workers_changed()
        if self.ready:
            self._on_serving()

    async def stop(self) -> None:
        """Drain and stop: NOT_SERVING, no new calls, running ones get `drain_s` and then UNAVAILABLE."""
        self._serves = False
        fronts, serving, store = self.fronts, self.serving, self.store
        if fronts.http is not None:
            fronts.http.drain()
        if not await fronts.grpc.drain(self._config.server.drain_s):
            serving.arrivals.close()
            ended = UnavailableError("the gateway shut down before the end", reason="GATEWAY_SHUTTING_DOWN")
            serving.dispatcher.fail_all(ended)
        if fronts.http is not None:
            await fronts.http.stop()
        await fronts.grpc.stop()
        await serving.fleet.stop()
        await self.serving.quotas.stop()
        if self.serving.usage_log is not None:
            await asyncio.to_thread(self.serving.usage_log.close, _LAST_LINES_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, store.idempotency.close(), store.journal.close(), return_exceptions=True)
        await store.client.aclose()
        self.serving.threads.close()
        _log.info("gateway stopped", address=self.address)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.stop()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a gateway can be reached. None: not that way."""

    grpc: str
    http: str | None
    metrics: str | None  # URL


Announce = Callable[[Addresses], None]


async def serve(
    config: GatewayConfig,
    on_ready: Announce,
    stop: asyncio.Event,
    on_serving: Callable[[], None] = lambda: None,
    hung_up: asyncio.Event | None = None,
    tracer: Tracer | None = None,
) -> None:
    """Run a gateway with its metrics endpoint until `stop` is set. Raises OSError for an address that cannot be had.

    `on_ready` is called when it listens, `on_serving` whenever a worker has come. When `hung_up` is set, the usage log
    is opened anew.
    """
    observer = GatewayMetrics()
    app = GatewayApp(config, observer, on_serving, tracer)
    observer.runs(own_version(), app.serving.fleet.in_flight, app.serving.control.pending())
    observer.index(lambda: len(app.serving.pages.index))
    checks = {"/livez": LoopWatch(asyncio.get_running_loop()).why_not_live, "/readyz": app.why_not_ready}
    async with AsyncExitStack() as stack:
        url = None
        if config.metrics_listen is not None:
            url = stack.enter_context(MetricsServer.start(observer.registry, config.metrics_listen, checks)).url
        await stack.enter_async_context(app)
        if app.serving.usage_log is not None:
            observer.usage_log(app.serving.usage_log.num_waiting)
            reopening = asyncio.create_task(_reopen(app.serving.usage_log, hung_up or asyncio.Event()))
            stack.callback(reopening.cancel)
        on_ready(Addresses(app.address, app.http_address, url))
        await stop.wait()


async def _reopen(usage_log: UsageLog, hung_up: asyncio.Event) -> None:
    while True:
        await hung_up.wait()
        hung_up.clear()
        usage_log.reopen()


def run_gateway(
    config: GatewayConfig,
    on_ready: Announce,
    on_serving: Callable[[], None] = lambda: None,
    tracing: TracingConfig | None = None,
) -> None:
    """Run a gateway until SIGINT or SIGTERM.

    Raises OSError for an address that cannot be had, ValueError for what cannot be used.
    """
    tracing = tracing or TracingConfig()
    spans = open_sink(tracing, {"service.name": "radixgate-gateway", "service.version": own_version()})

    async def main() -> None:
        stop, hung_up, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if config.usage_log is not None:
            loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        await serve(config, on_ready, stop, on_serving, hung_up, tracer_for(tracing, spans))

    try:
        asyncio.run(main())
    finally:
        spans.close(CLOSE_S)
