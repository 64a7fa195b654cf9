"""What there is to see, as values: a row for each worker, gateway, tenant and adapter. None: nothing is known."""

from dataclasses import dataclass

TIERS = ("device", "host", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Prompt tokens by where they came from, over the window; without traffic there are no Hits, and no rate of 0."""

    prompt: float
    device: float
    host: float
    storage: float

    @property
    def cached(self) -> float:
        return self.device + self.host + self.storage

    @property
    def rate(self) -> float:
        return min(1.0, self.cached / self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUse:
    """The slots of a tier by state."""

    free: float
    evictable: float
    in_use: float

    @property
    def total(self) -> float:
        return self.free + self.evictable + self.in_use


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles over the window, in seconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    worker: str
    endpoint: str
    up: bool
    error: str = ""
    model: str = ""
    device_name: str = ""
    version: str = ""
    running: float | None = None
    waiting: float | None = None
    prompt_rate: float | None = None  # tokens/s of prompts admitted
    output_rate: float | None = None  # tokens/s generated
    step_s: float | None = None  # mean
    stalled_s: float | None = None
    pause_rate: float | None = None
    lost_rate: float | None = None  # tokens/s that left the device unmirrored
    evicted_rate: float | None = None  # tokens/s that left the device
    hits: Hits | None = None
    device: SlotUse | None = None
    host: SlotUse | None = None
    settled: float | None = None
    mirror_rate: float | None = None  # bytes/s
    load_back_rate: float | None = None
    prefetch_rate: float | None = None
    stored_bytes: float | None = None  # of all workers that share the store
    adapters: float | None = None  # resident
    ttft: Latency | None = None  # from submission to the first token


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    gateway: str
    up: bool
    error: str = ""
    version: str = ""
    request_rate: float | None = None
    failure_rate: float | None = None  # ended by a fault of the service
    refusal_rate: float | None = None  # refused by a limit
    auth_failure_rate: float | None = None
    ttft: Latency | None = None
    streams: float | None = None
    queued: float | None = None
    redis: bool | None = None  # answers
    shared_limits: bool | None = None  # Redis decides about limits, and not this gateway alone
    workers_connected: int | None = None
    workers_known: int | None = None
    workers_shunned: int = 0  # those whose breaker is not closed
    move_rate: float | None = None  # requests that went on at another worker
    known_pages: float | None = None  # of all workers' caches
    right: float | None = None  # share of requests that found what was expected of their worker


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    tenant: str
    prompt_rate: float
    output_rate: float
    hits: Hits | None
    ttft: Latency | None
    queue: Latency | None
    refusal_rate: float | None

    @property
    def token_rate(self) -> float:
        return self.prompt_rate + self.output_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRow:
    tenant: str
    adapter: str
    prompt_rate: float
    output_rate: float
    hits: Hits | None

    @property
    def token_rate(self) -> float:
        return self.prompt_rate + self.output_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All workers together, or what gateways say where no worker is seen."""

    prompt_rate: float | None
    output_rate: float | None
    hits: Hits | None
    ttft: Latency | None
    running: float | None
    waiting: float | None
    resident_adapters: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one poll added, for the history."""

    at: float
    hit_rate: float | None
    prompt_rate: float | None
    output_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything at one moment."""

    at: float
    source: str
    window_s: float
    error: str  # why there is nothing new, "" if there is
    totals: Totals
    workers: tuple[WorkerRow, ...]
    gateways: tuple[GatewayRow, ...]
    silent: tuple[tuple[str, str], ...]  # endpoints that never answered, and why
    tenants: tuple[TenantRow, ...]
    adapters: tuple[AdapterRow, ...]
    history: tuple[Moment, ...]
