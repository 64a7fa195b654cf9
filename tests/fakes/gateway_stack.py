"""A whole gateway for tests: real sockets, a real Redis, FakeWorkers, and stubs to call it with."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from gateway.app import GatewayApp
from gateway.config import (
    FailoverConfig,
    GatewayConfig,
    GatewayLimits,
    HttpConfig,
    RedisConfig,
    ServerConfig,
    WorkerLinkConfig,
)
from gateway.observer import NullObserver
from radixgate.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.fakes.fake_worker import FakeWorker

ADMIN_TOKEN = "an-admin-token-for-tests"
Metadata = tuple[tuple[str, str | bytes], ...]
# Requests for four tokens, and for so many that a stream is still open when a test looks at it.
IDS = [11, 12, 13]
FOUR: dict[str, Any] = {"tokens": {"token_ids": IDS}, "sampling": {"max_new_tokens": 4, "ignore_eos": True}}
MANY: dict[str, Any] = {"tokens": {"token_ids": IDS}, "sampling": {"max_new_tokens": 400, "ignore_eos": True}}


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


class RecordingObserver(NullObserver):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str, str]] = []  # method, code, tenant
        self.auth_failures: list[str] = []
        self.loaded_certificates: list[float] = []
        self.refused_certificates: list[str] = []
        self.open_streams: Counter[str] = Counter()
        self.max_open_streams = 0
        self.admissions: list[tuple[str, str, str, int, int, int, int]] = []
        self.public_prefixes: list[tuple[str, str, str, int, int]] = []
        self.first_messages: list[float] = []
        self.next_messages: list[float] = []
        self.completions: list[int] = []
        self.workers: Counter[str] = Counter()
        self.hit_predictions: list[tuple[str, int, int, int]] = []  # worker, predicted, cached, error
        self.moves: list[tuple[str, str]] = []  # cause, outcome
        self.refused_moves: list[tuple[str, str]] = []  # cause, why
        self.shed: list[str] = []
        self.waits: list[bool] = []  # whether a worker was found
        self.stalls: list[str] = []
        self.breakers: list[tuple[str, str]] = []  # worker, state

    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None:
        assert seconds >= 0
        self.finished.append((method, code, tenant))

    def auth_failed(self, reason: str) -> None:
        self.auth_failures.append(reason)

    def certificate_loaded(self, expires_at: float) -> None:
        self.loaded_certificates.append(expires_at)

    def certificate_refused(self, reason: str) -> None:
        self.refused_certificates.append(reason)

    def stream_opened(self, tenant: str) -> None:
        self.open_streams[tenant] += 1
        self.max_open_streams = max(self.max_open_streams, self.open_streams.total())

    def stream_closed(self, tenant: str) -> None:
        self.open_streams[tenant] -= 1

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None:
        self.admissions.append((tenant, model, adapter, prompt_tokens, device, host, storage))

    def public_prefix_met(self, tenant: str, model: str, adapter: str, prefix_tokens: int, cached: int) -> None:
        self.public_prefixes.append((tenant, model, adapter, prefix_tokens, cached))

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        self.hit_predictions.append((worker, predicted_tokens, cached_tokens, error_tokens))

    def first_message(self, tenant: str, model: str, seconds: float) -> None:
        self.first_messages.append(seconds)

    def next_message(self, tenant: str, model: str, seconds: float) -> None:
        self.next_messages.append(seconds)

    def stream_finished(self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float) -> None:
        self.completions.append(completion_tokens)

    def request_moved(self, cause: str, outcome: str) -> None:
        self.moves.append((cause, outcome))

    def move_refused(self, cause: str, why: str) -> None:
        self.refused_moves.append((cause, why))

    def request_shed(self, reason: str) -> None:
        self.shed.append(reason)

    def worker_awaited(self, seconds: float, found: bool) -> None:
        assert seconds >= 0
        self.waits.append(found)

    def worker_stalled(self, worker: str) -> None:
        self.stalls.append(worker)

    def breaker_changed(self, worker: str, state: str) -> None:
        self.breakers.append((worker, state))

    def worker_connected(self, worker: str) -> None:
        self.workers[worker] += 1

    def worker_lost(self, worker: str) -> None:
        self.workers[worker] -= 1


@dataclass
class Completion:
    """All messages of one Generate call."""

    messages: list[inference_pb2.GenerateResponse] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for message in self.messages for token_id in message.token_ids]

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages)

    @property
    def usage(self) -> inference_pb2.Usage:
        return self.messages[-1].usage


@dataclass
class Refusal:
    """How a call failed, with its details unpacked."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    fields: dict[str, str]
    retry_delay_s: float | None

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> "Refusal":
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        delay = None
        status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]
        for packed in status.details if status is not None else ():
            packed.Unpack(info)
            packed.Unpack(bad)
            if packed.Unpack(retry):
                delay = retry.retry_delay.ToTimedelta().total_seconds()
        fields = {violation.field: violation.description for violation in bad.field_violations}
        return cls(error.code(), error.details() or "", info.reason, dict(info.metadata), fields, delay)


class Stack:
    """One gateway and how to speak to it."""

    def __init__(self, app: GatewayApp, observer: RecordingObserver, channel: grpc.aio.Channel) -> None:
        self.app = app
        self.observer = observer
        self.channel = channel
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.keys: dict[str, str] = {}

    async def add_tenant(self, tenant_id: str) -> str:
        """Create a tenant with one key and return the key."""
        admin = bearer(ADMIN_TOKEN)
        await self.admin.CreateTenant(admin_pb2.CreateTenantRequest(tenant_id=tenant_id), metadata=admin)
        return await self.add_key(tenant_id)

    async def add_key(self, tenant_id: str) -> str:
        made = await self.admin.CreateApiKey(
            admin_pb2.CreateApiKeyRequest(tenant_id=tenant_id), metadata=bearer(ADMIN_TOKEN)
        )
        self.keys[tenant_id] = made.secret
        return made.secret

    def call(
        self, tenant_id: str = "acme", *, timeout: float | None = 30.0, metadata: Metadata = (), **request: Any
    ) -> grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]:
        """Begin a Generate call."""
        credentials = bearer(self.keys[tenant_id])
        return self.inference.Generate(
            inference_pb2.GenerateRequest(**request), metadata=(*credentials, *metadata), timeout=timeout
        )

    async def generate(self, tenant_id: str = "acme", **request: Any) -> Completion:
        return Completion([message async for message in self.call(tenant_id, **request)])

    async def refused(self, tenant_id: str = "acme", **request: Any) -> Refusal:
        """Make a Generate call that must fail."""
        try:
            await self.generate(tenant_id, **request)
        except grpc.aio.AioRpcError as error:
            return Refusal.of(error)
        raise AssertionError("the call was not refused")

    async def ready(self, timeout_s: float = 10.0) -> None:
        await until(lambda: self.app.ready, timeout_s)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `condition()` holds; fail when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of all kinds, with a deadline
            await asyncio.sleep(0.005)


def config_for(redis_url: str, workers: Sequence[str], **changes: Any) -> GatewayConfig:
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "workers": tuple(workers),
        "admin_token": ADMIN_TOKEN,
        "metrics_listen": None,
        "http": HttpConfig(listen="127.0.0.1:0"),
        # Long, so that a busy machine is no outage.
        "redis": RedisConfig(url=redis_url, timeout_s=10.0),
        "limits": GatewayLimits(),
        "server": ServerConfig(drain_s=5.0),
        "worker_link": WorkerLinkConfig(backoff_initial_s=0.02, backoff_max_s=0.2),
        # A refusal that is wanted comes at once; tests of waiting and moving say more.
        "failover": FailoverConfig(wait_for_worker_s=0.0, backoff_initial_s=0.005, backoff_max_s=0.02),
    }
    return GatewayConfig(**{**values, **changes})


@contextlib.asynccontextmanager
async def gateway(
    redis_url: str,
    workers: Sequence[FakeWorker | str],
    *,
    tenants: Sequence[str] = ("acme",),
    credentials: grpc.ChannelCredentials | None = None,
    **changes: Any,
) -> AsyncIterator[Stack]:
    """Run a gateway over `workers`, with a key for each of `tenants`; with `credentials` it is called by TLS."""
    addresses = [worker if isinstance(worker, str) else worker.address for worker in workers]
    observer = RecordingObserver()
    async with GatewayApp(config_for(redis_url, addresses, **changes), observer) as app:
        async with channel_to(app.address, credentials) as channel:
            stack = Stack(app, observer, channel)
            for tenant_id in tenants:
                await stack.add_tenant(tenant_id)
            if any(isinstance(worker, FakeWorker) for worker in workers):
                await until(lambda: observer.workers.total() == len(addresses))
            yield stack


def channel_to(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """Return a channel with connections of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


def health_stub(stack: Stack) -> Any:
    make: Any = health_pb2_grpc.HealthStub
    return make(stack.channel)


async def health(stack: Stack, service: str) -> int:
    answer = await health_stub(stack).Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    status: int = answer.status
    return status
