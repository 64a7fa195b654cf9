"""Workers and gateways as `radixgate top` sees them: the product's own metrics behind real endpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

from cli.top.samples import Samples, parse
from hicache.stats import TierStats
from metrics.exposition import MetricsServer
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics

STATS = TierStats(**dict.fromkeys(TierStats.__dataclass_fields__, 0))


@dataclass(frozen=True)
class Hit:
    device: int = 0
    host: int = 0
    storage: int = 0


@dataclass(frozen=True)
class Admission:
    prompt_tokens: int
    hit: Hit


@dataclass(frozen=True)
class Load:
    running: int
    waiting: int
    free_slots: int
    evictable_slots: int
    num_slots: int


def a_worker(name: str = "worker-0", *, has_host: bool = True) -> WorkerMetrics:
    metrics = WorkerMetrics(name)
    metrics.serves(
        version="0.1.0", model="smollm2-135m-instruct", model_revision="r1", device="cpu", number_format="fp32",
        bytes_per_token=46_080,
    )  # fmt: skip
    metrics.engine(lambda: 0.0)
    if has_host:
        metrics.host_pool(pinned=False, num_bytes=2000 * 46_080, bytes_per_token=46_080)
    metrics.adapters(num_resident=lambda: 1, host_bytes=lambda: 1 << 20)
    metrics.load_changed(Load(running=2, waiting=1, free_slots=250, evictable_slots=450, num_slots=1000))
    return metrics


def serve_request(metrics: WorkerMetrics, tenant: str, prompt: int, output: int, adapter: str = "", **hit: int) -> None:
    """A request that begins and ends."""
    metrics.admitted(tenant, adapter, Admission(prompt, Hit(**hit)), queue_wait_s=0.02)
    metrics.first_token(tenant, adapter, 0.2)
    for _ in range(output - 1):
        metrics.next_token(tenant, adapter, 0.03)
    metrics.stepped(prompt, 1, 0.04)
    metrics.finished(tenant, adapter, "stop", output, 1.0)


def a_gateway() -> GatewayMetrics:
    metrics = GatewayMetrics()
    metrics.runs("0.1.0", lambda: {"worker-0": 1}, {})
    metrics.store_reachable(True)
    metrics.worker_connected("worker-0")
    return metrics


def pass_request(metrics: GatewayMetrics, tenant: str, prompt: int, output: int, code: str = "OK", **hit: int) -> None:
    tiers = {"device": 0, "host": 0, "storage": 0} | hit
    metrics.quota_decided(tenant, "admitted", "", "shared")
    metrics.admitted(tenant, "m", "", prompt, **tiers)
    metrics.first_message(tenant, "m", 0.4)
    metrics.stream_finished(tenant, "m", "", output, 1.0)
    metrics.rpc_finished("Generate", code, tenant, 1.0)


def shown(registry: CollectorRegistry) -> Samples:
    """What an endpoint with these metrics says."""
    return parse(generate_latest(registry).decode())


@contextmanager
def served(registry: CollectorRegistry, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """The URL of an endpoint."""
    with MetricsServer.start(registry, listen) as server:
        yield server.url
