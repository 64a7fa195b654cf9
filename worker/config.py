"""What a worker can be told. Frozen values; whoever reads a file validates them against the bounds in their types.

The bounds are `annotated_types` metadata, so that this module needs no validation library. What spans two fields is
checked here, when the value is made.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le, Lt, MinLen, Predicate

from hicache.storage.opening import SCHEMES

PolicyName = Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority", "lhd"]
PositiveFloat = Annotated[float, Gt(0), Predicate(math.isfinite)]
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
NonNegativeFloat = Annotated[float, Ge(0), Predicate(math.isfinite)]
Name = Annotated[str, MinLen(1)]


def is_address(value: str) -> bool:
    """Whether `value` reads HOST:PORT (an IPv6 host in brackets)."""
    host, separator, port = value.rpartition(":")
    return bool(separator and host) and port.isascii() and port.isdigit() and int(port) <= 65535


Address = Annotated[str, Predicate(is_address)]


def is_storage_url(value: str) -> bool:
    """Whether `value` begins like the URL of a store. What else a store wants of it is said where it is opened."""
    try:
        url = urlsplit(value)
        _ = url.port  # raises ValueError where it is no port
    except ValueError:
        return False
    return url.scheme in SCHEMES and "://" in value


StorageUrl = Annotated[str, Predicate(is_storage_url)]


def is_redis_url(value: str) -> bool:
    """Whether `value` reads redis://HOST:PORT/NUMBER, rediss://... or unix://PATH. Parts have defaults."""
    try:
        url = urlsplit(value)
        _ = url.port  # raises ValueError where it is no port
    except ValueError:
        return False
    return value.startswith(("redis://", "rediss://")) or (value.startswith("unix://") and url.path != "")


RedisUrl = Annotated[str, Predicate(is_redis_url)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine fills its steps."""

    max_step_tokens: PositiveInt = 512  # tokens of one forward pass, over all sequences
    max_running: PositiveInt = 32  # sequences with slots of their own
    max_chunk_tokens: PositiveInt = 256  # tokens of one sequence in one step
    # Sequences beyond those that may run. More are refused as overload, those of whoever has more than its share first.
    max_waiting: NonNegativeInt = 1024
    order: Literal["fair", "fcfs", "lpm", "dfs_weight", "priority"] = "fair"  # of the waiting line
    # In the fair order: what a cached prompt token costs its tenant, where one that is computed costs 1, and how much a
    # tenant may start before it is the next one's turn.
    cached_token_cost: Annotated[float, Ge(0), Le(1)] = 0.1
    fair_quantum_tokens: PositiveInt = 2048
    # Prompt tokens of one forward pass while a tenant that floods this worker is not alone here: the longer a pass, the
    # longer everybody else waits for its end. None: an eighth of max_step_tokens.
    contested_prompt_tokens: PositiveInt | None = None
    # Who waits longer may go before others of its tenant whose prefix is cached, and of higher priority, now and then.
    max_wait_s: PositiveFloat = 10.0
    # A sequence starts only when this many tokens beyond its prompt have slots as well, for itself and for each one
    # running; doubled with each time it had to pause.
    headroom_tokens: PositiveInt = 16
    # A request waits for another one's prefill if that saves it this many tokens.
    min_shared_tokens: PositiveInt = 16
    max_resident_adapters: Annotated[int, Ge(0), Le(1024)] = 8  # LoRA adapters on the device at a time
    max_adapter_rank: Annotated[int, Ge(1), Le(1024)] = 128
    # An adapter waits this long for a place on the device; then sequences that run with another one are paused for it.
    adapter_patience_s: PositiveFloat = 0.5
    check: bool = False  # verify every invariant of cache and engine whenever nothing runs (for debugging)

    def __post_init__(self) -> None:
        if self.max_step_tokens < self.max_running:
            # Each running sequence must be able to decode in every step.
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_running ({self.max_running})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where prefixes outlive a worker and are shared with others. Without a `url` there is no storage tier."""

    url: StorageUrl | None = None  # file:///folder, redis://host:port/0, rediss://…, memory://
    max_bytes: PositiveInt = 16 << 30  # of all that share it
    ttl_s: PositiveFloat = 86_400.0  # where the store can: pages that nobody used for so long are gone
    timeout_s: PositiveFloat = 2.0  # for each answer of a server
    page_size: PositiveInt = 64  # tokens; the grain of storage, a multiple of the cache's page_size
    # How long a request waits for storage before it computes, and how much all requests may have on the way.
    prefetch_timeout_s: PositiveFloat = 2.0
    max_prefetch_bytes: PositiveInt = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """What a tenant is promised of the device's and the host's slots."""

    floor: Annotated[float, Ge(0), Lt(1)] = 0.0  # the fraction that others' traffic cannot take
    weight: PositiveFloat = 1.0  # in the division of all slots; tenants without a share have 1 together


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How large the tiers are and what leaves them first.

    `num_slots` wins over `memory_bytes`; of the host tier, `host_slots` over `host_bytes` over `host_ratio`.
    """

    num_slots: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None  # None: sized by the worker from what the machine has
    page_size: PositiveInt = 1  # tokens; the grain of reuse
    policy: PolicyName = "lru"

    host_slots: NonNegativeInt | None = None  # 0: no host tier
    host_bytes: NonNegativeInt | None = None
    # Host slots for each device slot. None: 2 where the device is a GPU, as far as half of the memory that is free
    # goes; 0 where it is the CPU, whose pool lies in the same memory.
    host_ratio: Annotated[float, Ge(0), Predicate(math.isfinite)] | None = None
    pin: Literal["auto", "require", "never"] = "auto"  # the host pool's memory, for a GPU
    write_policy: Literal["write_back", "write_through", "write_through_selective"] = "write_back"
    hit_threshold: PositiveInt = 2  # of write_through_selective
    # Mirroring begins when the share of slots that can be handed out without loss falls below the first.
    low_watermark: Annotated[float, Ge(0), Le(1)] = 0.1
    high_watermark: Annotated[float, Ge(0), Le(1)] = 0.2
    load_back_threshold: PositiveInt = 16  # a hit on the host of fewer tokens is computed again
    copy_timeout_s: PositiveFloat = 10.0  # a copy between device and host that takes longer is given up
    storage: StorageConfig = field(default_factory=StorageConfig)
    shares: Mapping[str, ShareConfig] = field(default_factory=dict)  # by tenant

    def __post_init__(self) -> None:
        for name in ("num_slots", "host_slots"):
            slots = getattr(self, name)
            if slots is not None and slots % self.page_size:
                raise ValueError(f"{name} ({slots}) must be a multiple of page_size ({self.page_size})")
        if self.low_watermark > self.high_watermark:
            raise ValueError(
                f"low_watermark ({self.low_watermark:g}) must be at most high_watermark ({self.high_watermark:g})"
            )
        if self.storage.url is not None and self.storage.page_size % self.page_size:
            raise ValueError(
                f"storage.page_size ({self.storage.page_size}) must be a multiple of page_size ({self.page_size})"
            )
        floors = sum(share.floor for share in self.shares.values())
        if floors >= 1:
            raise ValueError(f"the floors of all shares must be less than 1 together, got {floors:g}")
        if "" in self.shares:
            raise ValueError("shares: a share needs the name of a tenant")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model is served and how it computes."""

    model: Name = "smollm2-135m-instruct"  # a known name, a Hugging Face folder, or a GGUF file
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    device: Name = "auto"  # "cpu", "cuda", "cuda:1"; auto: a GPU if there is one
    # None: one for each core the process may use.
    threads: Annotated[int, Ge(1), Le(1024)] | None = None
    # How forward passes run. auto: in native code for plain decoders on the CPU, else as transformers defines them.
    forward: Literal["auto", "native", "transformers"] = "auto"
    # The attention backend; auto: the best of what the machine has.
    attention: Literal["auto", "native", "flashinfer", "cascade", "torch"] = "auto"

    def __post_init__(self) -> None:
        if self.forward == "native" and self.attention not in {"auto", "native"}:
            raise ValueError(f"forward 'native' attends in native code, not by attention {self.attention!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """An adapter that is there from the start."""

    path: Name  # a PEFT folder
    tenants: tuple[Name, ...] = ()  # that may use it; none named: all


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Which adapters a worker has, and how many it takes. How many compute at a time is the engine's."""

    adapters: Mapping[str, AdapterConfig] = field(default_factory=dict)  # by name
    max_adapters: PositiveInt = 256  # by name, tenants and revision
    max_host_bytes: PositiveInt = 2 << 30  # of the weights of all adapters together, those on their way out included
    # A request that is still at work on an adapter which was replaced fails after this time.
    replaced_grace_s: PositiveFloat = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS towards gateways. Without a `cert_file` the worker speaks plain text to whoever can reach it."""

    # PEM: the certificate with its chain, and its key. Rotated files are used for new connections.
    cert_file: Name | None = None
    key_file: Name | None = None
    # PEM: authorities of the gateways' certificates. With it nobody else gets a connection.
    client_ca_file: Name | None = None
    reload_s: PositiveFloat = 10.0  # how often the files are looked at

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls.cert_file and tls.key_file belong together")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValueError("tls.client_ca_file needs tls.cert_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Where a worker makes itself known to gateways. Without a `url` it does not: gateways have its address."""

    url: RedisUrl | None = None
    # A worker that has died is forgotten after this time.
    ttl_s: PositiveFloat = 10.0
    # Where gateways reach it. None: where it listens, which must not be all interfaces then.
    advertise: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """A worker without a model: the times of forward passes are modelled, and everything around them is real."""

    enabled: bool = False
    model_name: Name = "simulated"
    context_length: PositiveInt = 131_072
    # Prompts may have any token id below it: those of recorded traces fit. Answers are made of letters.
    vocab_size: Annotated[int, Ge(1024), Le(2**31 - 1)] = 1 << 27
    # How likely each next token ends an answer.
    end_probability: Annotated[float, Gt(0), Le(1)] = 0.001
    # A pass takes step_s, the rest of these times its tokens, and of a token times what it attends to.
    step_s: NonNegativeFloat = 0.008
    token_s: NonNegativeFloat = 0.000_02
    pair_s: NonNegativeFloat = 0.000_000_000_2
    load_tokens_per_s: PositiveFloat = 500_000.0  # from the host
    fetch_tokens_per_s: PositiveFloat = 100_000.0  # from storage
    speed: PositiveFloat = 1.0  # everything takes this many times less


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process. Addresses are host:port; port 0 takes a free one."""

    worker_id: Name = "worker-0"
    listen: Address = "127.0.0.1:50061"
    metrics_listen: Address = "127.0.0.1:9101"
    # When nothing has moved for so long while there is work, /livez beside the metrics says that this process is dead.
    stall_limit_s: PositiveFloat = 300.0
    # How often gateways hear from this worker at least; they take one that says nothing for a few seconds for hung.
    report_interval_s: Annotated[float, Gt(0), Le(2)] = 1.0
    # How long requests that are here may go on when the worker is told to end.
    drain_s: NonNegativeFloat = 10.0
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
