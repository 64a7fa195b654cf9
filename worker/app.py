"""The composition root of a worker process: the only module that knows all of its concrete classes."""

import asyncio
import gc
import importlib
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc
import structlog
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from hicache.tiers.device import DevicePool
from metrics.exposition import MetricsServer
from metrics.listening import why_not_free
from metrics.loop import LoopWatch
from metrics.version import own_version
from metrics.worker import WorkerMetrics
from radixgate.v1 import worker_pb2, worker_pb2_grpc
from tracing.config import TracingConfig
from tracing.opening import CLOSE_S, TracingError, open_sink
from tracing.spans import NoSpans, SpanSink
from worker.batch import Executor, TextStreamFactory
from worker.config import CacheConfig, EngineConfig, WorkerConfig
from worker.engine.delivery import Deliver
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor, ThreadExecutor
from worker.engine.limits import ModelLimits
from worker.engine.ports import CacheNews, Load, SequenceOutput
from worker.engine.thread import EngineThread
from worker.errors import WorkerStartError
from worker.grammar.compiler import GrammarCompiler
from worker.lora.model_adapters import LoadObserver, ModelAdapters
from worker.model.hardware import available_memory_bytes
from worker.model.info import ModelInfo
from worker.model.progress import ProgressReporter
from worker.registry.entry import advertised, check_registry, registration
from worker.registry.registrar import Registrar
from worker.rpc.adapter_calls import AdapterCalls
from worker.rpc.adapters import AdapterDirectory, AdapterRefused
from worker.rpc.cache_calls import CacheCalls
from worker.rpc.links import Links
from worker.rpc.requests import OpenRequests
from worker.rpc.service import WorkerServicer
from worker.rpc.snapshots import Snapshots
from worker.rpc.tls import check_tls, server_tls
from worker.simulate.model import DEVICE as SIMULATED_DEVICE
from worker.simulate.model import SimulatedModel
from worker.simulate.movement import TimedStore, timed_transfer
from worker.tiers import Movement, Tiers, build_tiers

_log = structlog.get_logger(__name__)

SERVICE_NAME = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
# A prompt of a million token ids takes less; the gateway bounds what clients may send.
MAX_MESSAGE_BYTES = 64 << 20
MIN_PING_INTERVAL_MS = 5000

_NUMBER_FORMATS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "none"}  # the last one is simulated


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Where a worker really listens, after port 0 has been resolved."""

    grpc: str  # host:port
    metrics: str  # URL


class ServedModel(Protocol):
    """What a worker needs of a model that is loaded."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def text(self) -> TextStreamFactory: ...

    def num_slots(self, cache: CacheConfig) -> int:
        """Return how many slots the pool is to have: as configured, or as many as fit its memory."""
        ...

    def pool(self, num_slots: int) -> DevicePool:
        """Allocate a pool of `num_slots` slots."""
        ...

    def executor(self, pool: DevicePool) -> Executor:
        """Return what computes on a pool."""
        ...

    def adapters(self, config: EngineConfig, on_done: Callable[[], None], observer: LoadObserver) -> ModelAdapters:
        """Return what reads adapters and brings them to where passes compute with them, or says why that can't be.

        `on_done` is called from any thread when one has come.
        """
        ...


class WorkerApp:
    """One worker: engine, gRPC server and metrics endpoint around a loaded model."""

    def __init__(self, config: WorkerConfig, loaded: ServedModel, spans: SpanSink | None = None) -> None:
        """Spans of what is traced go to `spans`. Raises WorkerStartError for a certificate that cannot serve."""
        pool = loaded.pool(loaded.num_slots(config.cache))
        info = loaded.info
        self._config = config
        self._thread: EngineThread | None = None
        self._metrics = WorkerMetrics(config.worker_id)
        self._tls = server_tls(config.tls, self._metrics)
        self._reloading: asyncio.Task[None] | None = None
        self._tiers = build_tiers(
            config.cache,
            pool,
            revision=info.revision,
            available_bytes=available_memory_bytes(torch.device("cpu")),
            on_done=self._wake_engine,
            movement=_movement(config),
        )
        self._cache = self._tiers.cache
        self._metrics.serves(
            version=own_version(),
            model=info.name,
            model_revision=info.revision,
            device=SIMULATED_DEVICE if config.simulation.enabled else str(pool.device),
            number_format=_NUMBER_FORMATS.get(pool.dtype, str(pool.dtype)),
            bytes_per_token=pool.bytes_per_token,
        )
        if (host_pool := self._tiers.host_pool) is not None:
            self._metrics.host_pool(
                pinned=host_pool.pinned, num_bytes=host_pool.num_bytes, bytes_per_token=host_pool.bytes_per_token
            )
        if self._tiers.store is not None:
            self._metrics.storage(self._tiers.store)
        self._executor = _starting(
            loaded.executor(pool), leaves_a_core=config.simulation.enabled or pool.device.type != "cpu"
        )
        self._adapters = loaded.adapters(config.engine, self._wake_engine, self._metrics)
        self._directory: AdapterDirectory | None = None
        self._engine = Engine(
            self._cache,
            self._executor,
            loaded.text,
            ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
            config.engine,
            adapters=self._adapters,
            observer=self._metrics,
            clock=time.monotonic,
        )
        self._grammar = GrammarCompiler(
            info.tokenizer_json, info.sampled_vocab_size or info.vocab_size, info.eos_token_ids
        )
        self._model = describe_model(config, info, self._engine.max_sequence_tokens, self._tiers)
        self._links = Links(OpenRequests(config.worker_id, spans or NoSpans()), self._metrics)
        self._reports: asyncio.Task[None] | None = None
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._exposition: MetricsServer | None = None
        self._registrar: Registrar | None = None
        self._serves = False  # from the end of `start` to the beginning of `stop`

    async def start(self) -> WorkerAddresses:
        """Start to serve; returns where.

        Raises OSError when an address cannot be bound, WorkerStartError for an adapter of the configuration that cannot
        be loaded.
        """
        self._engine.idle(time.monotonic())  # so that gauges are right before the first request
        self._links.deliver([], self._engine.load(), self._engine.take_cache_news())
        self._thread = EngineThread(self._engine, self._deliver_on(asyncio.get_running_loop()))
        self._thread.start()
        self._metrics.engine(self._thread.stalled_s)
        self._links.board.watch(self._thread.stalled_s)
        self._reports = asyncio.create_task(self._links.report_every(self._config.report_interval_s))
        directory, calls = self._make_directory(self._thread)
        await self._load_configured(directory)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                # What a gateway reads late comes in one piece; one that is too large would end all of its sequences.
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two workers on one port would share its gateways silently
                # Gateways ping idle links, to notice a worker that is gone; unpermitted pings would end the link.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            ]
        )
        cache_calls, snapshots = CacheCalls(self._thread), Snapshots(self._thread, self._links)
        servicer = WorkerServicer(
            self._model, self._thread, self._links, directory, calls, cache_calls, snapshots, self._grammar
        )
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host = self._config.listen.rpartition(":")[0]
        port = _listen(self._server, self._config.listen, self._tls.grpc_credentials() if self._tls else None)
        await self._server.start()
        if self._tls is not None:
            self._reloading = asyncio.create_task(self._tls.run())
        loop = LoopWatch(asyncio.get_running_loop())
        checks = {"/livez": lambda: self.why_not_live() or loop.why_not_live(), "/readyz": self.why_not_ready}
        self._exposition = MetricsServer.start(self._metrics.registry, self._config.metrics_listen, checks)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._serves = True
        addresses = WorkerAddresses(f"{host}:{port}", self._exposition.url)
        self._register(directory, port)
        _log.info(
            "worker ready", grpc=addresses.grpc, metrics=addresses.metrics, model=self._model.model,
            num_slots=self._cache.num_slots, page_size=self._cache.page_size,
        )  # fmt: skip
        return addresses

    async def stop(self, drain_timeout_s: float | None = None) -> None:
        """Stop taking requests, give those here `drain_timeout_s` (None: as configured) to end, then end everything."""
        drain_timeout_s = self._config.drain_s if drain_timeout_s is None else drain_timeout_s
        self._serves = False
        self._links.drain()
        if self._registrar is not None:
            await self._registrar.leave()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        if self._thread is not None:
            drained = await asyncio.to_thread(self._thread.drain, drain_timeout_s)
            stopped = await asyncio.to_thread(self._thread.stop)
            _log.info("engine stopped", drained=drained, stopped=stopped)
        self._grammar.close()
        if self._directory is not None:
            self._directory.close()
        await asyncio.to_thread(self._adapters.close)
        await asyncio.to_thread(self._executor.close)
        await asyncio.to_thread(self._tiers.close)
        # What the engine said last was handed to the loop before stop() returned, so the links have it by now.
        self._links.close_all()
        if self._server is not None:
            await self._server.stop(grace=1.0)
        for task in (self._reloading, self._reports):
            if task is not None:
                task.cancel()
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.stop)

    def load(self) -> Load:
        """How busy the engine is. Read from another thread than the engine's, so true as of some moment just now."""
        return self._engine.load()

    def why_not_live(self) -> str | None:
        """Return why this process should be started anew for its engine, or None. From any thread."""
        if self._thread is None:
            return None
        if self._thread.has_died:
            return "the engine's thread has ended"
        stalled_s, limit_s = self._thread.stalled_s(), self._config.stall_limit_s
        if stalled_s > limit_s:
            return f"nothing has moved for {stalled_s:.0f} s while there is work; worker.stall_limit_s is {limit_s:g}"
        return None

    def why_not_ready(self) -> str | None:
        """Return why no request should be sent here, or None. From any thread."""
        return None if self._serves else "the worker is starting or stopping"

    def _deliver_on(self, loop: asyncio.AbstractEventLoop) -> Deliver:
        def deliver(outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
            loop.call_soon_threadsafe(self._links.deliver, outputs, load, cache)

        return deliver

    def _make_directory(self, thread: EngineThread) -> tuple[AdapterDirectory, AdapterCalls]:
        self._directory = directory = AdapterDirectory(self._adapters, thread, self._config.lora)
        calls = AdapterCalls(directory, self._engine.adapters)
        directory.watch(lambda: self._adapters_changed(calls))
        self._metrics.adapters(
            num_resident=lambda: sum(state.resident for state in self._engine.adapters()),
            host_bytes=lambda: directory.host_bytes,
        )
        return directory, calls

    def _adapters_changed(self, calls: AdapterCalls) -> None:
        self._links.announce(calls.adapter_set())
        if self._registrar is not None:
            self._registrar.refresh()

    def _register(self, directory: AdapterDirectory, port: int) -> None:
        config = self._config.registry
        if config.url is None:
            return
        address, began_at = advertised(self._config, port), time.time()

        def describe() -> worker_pb2.WorkerRegistration:
            return registration(self._model, address, began_at, (entry.name for entry in directory.entries()))

        self._registrar = Registrar(config, describe, self._metrics)
        self._registrar.start()

    async def _load_configured(self, directory: AdapterDirectory) -> None:
        for name, adapter in self._config.lora.adapters.items():
            try:
                await directory.load(name, adapter.path, adapter.tenants)
            except AdapterRefused as refused:
                raise WorkerStartError(f"worker.lora.adapters.{name}: {refused.message}") from refused

    def _wake_engine(self) -> None:
        if self._thread is not None:
            self._thread.wake()

    async def _set_health(self, status: int) -> None:
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status)


def _starting(executor: Executor, *, leaves_a_core: bool) -> InlineExecutor | ThreadExecutor:
    """Return what starts forward passes: beside the engine where they leave it a core."""
    return ThreadExecutor(executor) if leaves_a_core else InlineExecutor(executor)


def _movement(config: WorkerConfig) -> Movement:
    """Return how KV moves between this worker's tiers: in modelled time where the model is simulated."""
    simulation = config.simulation
    if not simulation.enabled:
        return Movement()
    page_s = config.cache.storage.page_size / (simulation.fetch_tokens_per_s * simulation.speed)
    load_tokens_per_s = simulation.load_tokens_per_s * simulation.speed
    return Movement(
        transfer=partial(timed_transfer, tokens_per_s=load_tokens_per_s),
        store=lambda store: TimedStore(store, page_s),
    )


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Return the port. Raises OSError, naming the address, if it cannot be had."""
    try:
        if credentials is not None:
            return server.add_secure_port(address, credentials)
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {why_not_free(address) or error}") from error


def describe_model(
    config: WorkerConfig, info: ModelInfo, max_sequence_tokens: int, tiers: Tiers
) -> worker_pb2.GetModelResponse:
    """Return what gateways are told about this worker's model and cache."""
    return worker_pb2.GetModelResponse(
        worker_id=config.worker_id,
        model=info.name,
        context_length=info.context_length,
        max_sequence_tokens=max_sequence_tokens,
        vocab_size=info.vocab_size,
        page_size=config.cache.page_size,
        tokenizer_json=info.tokenizer_json,
        chat_template=info.chat_template,
        special_tokens=dict(info.special_tokens),
        eos_token_ids=info.eos_token_ids,
        model_revision=info.revision,
        name_seed=tiers.names.seed,
        name_page_size=tiers.names.page_size,
        device_slots=tiers.cache.num_slots,
        host_slots=0 if tiers.host_pool is None else tiers.host_pool.num_slots,
        store_id=tiers.store_id,
        simulated=config.simulation.enabled,
        incarnation=secrets.token_hex(8),
    )


def run_worker(
    config: WorkerConfig,
    progress: ProgressReporter,
    on_ready: Callable[[WorkerAddresses], None],
    tracing: TracingConfig | None = None,
) -> None:
    """Load the model and serve until SIGTERM or SIGINT; `on_ready` is told the addresses once it serves.

    Raises WorkerStartError for a model that cannot be served, and OSError for an address that cannot be had: before the
    model is loaded, if it is known by then.
    """
    for listen in (config.listen, config.metrics_listen):
        if reason := why_not_free(listen):
            raise OSError(f"cannot listen on {listen}: {reason}")
    check_tls(config.tls)
    check_registry(config)
    spans = _open_spans(config, tracing or TracingConfig())
    loaded = _load(config, progress)
    # What is here now stays until the end: a full collection that looks at all of it stops every stream for as long as
    # ten steps take.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(_serve(WorkerApp(config, loaded, spans), on_ready))
    finally:
        spans.close(CLOSE_S)


def _load(config: WorkerConfig, progress: ProgressReporter) -> ServedModel:
    if config.simulation.enabled:
        return SimulatedModel(config.simulation)
    # By name, because transformers takes two seconds to import: nobody waits for it who serves no model.
    loading = importlib.import_module("worker.model.loading")
    loaded: ServedModel = loading.load_model(config.model, progress)
    return loaded


def _open_spans(config: WorkerConfig, tracing: TracingConfig) -> SpanSink:
    process = {
        "service.name": "radixgate-worker",
        "service.instance.id": config.worker_id,
        "service.version": own_version(),
    }
    try:
        return open_sink(tracing, process)
    except TracingError as error:
        raise WorkerStartError(str(error)) from error


async def _serve(app: WorkerApp, on_ready: Callable[[WorkerAddresses], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        on_ready(await app.start())
        await stop.wait()
    finally:
        await app.stop()
