"""What a worker can be told. Frozen values; whoever reads a file validates them against the bounds in their types.

The bounds are `annotated_types` metadata, so that this module needs no validation library. What spans two fields is
checked here, when the value is made.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, MinLen, Predicate

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Name = Annotated[str, MinLen(1)]


def is_address(value: str) -> bool:
    """Whether `value` reads HOST:PORT (an IPv6 host in brackets)."""
    host, separator, port = value.rpartition(":")
    return bool(separator and host) and port.isascii() and port.isdigit() and int(port) <= 65535


Address = Annotated[str, Predicate(is_address)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine fills its steps."""

    max_step_tokens: PositiveInt = 512  # tokens of one forward pass, over all sequences
    max_running: PositiveInt = 32  # sequences with slots of their own
    max_chunk_tokens: PositiveInt = 256  # tokens of one sequence in one step
    max_waiting: NonNegativeInt = 1024  # sequences beyond those that may run; more are refused as overload
    order: Literal["fcfs", "priority"] = "fcfs"  # of the waiting line
    # A sequence starts only when this many tokens beyond its prompt have slots as well, for itself and for each one
    # running; doubled with each time it had to pause.
    headroom_tokens: PositiveInt = 16
    # A request waits for another one's prefill if that saves it this many tokens.
    min_shared_tokens: PositiveInt = 16
    check: bool = False  # verify every invariant of cache and engine whenever nothing runs (for debugging)

    def __post_init__(self) -> None:
        if self.max_step_tokens < self.max_running:
            # Each running sequence must be able to decode in every step.
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_running ({self.max_running})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How large the slot pool is and what leaves it first. `num_slots` wins over `memory_bytes`."""

    num_slots: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None  # None: sized by the worker from what the machine has
    page_size: PositiveInt = 1  # tokens; the grain of reuse
    policy: Literal["lru", "lfu", "fifo", "priority"] = "lru"

    def __post_init__(self) -> None:
        if self.num_slots is not None and self.num_slots % self.page_size:
            raise ValueError(f"num_slots ({self.num_slots}) must be a multiple of page_size ({self.page_size})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model is served and how it computes."""

    model: Name = "smollm2-135m-instruct"  # a known name, a Hugging Face folder, or a GGUF file
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    device: Name = "auto"  # "cpu", "cuda", "cuda:1"; auto: a GPU if there is one
    threads: PositiveInt | None = None  # None: one for each core the process may use
    attention: Literal["torch"] = "torch"  # the attention backend


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process. Addresses are host:port; port 0 takes a free one."""

    worker_id: Name = "worker-0"
    listen: Address = "127.0.0.1:50061"
    metrics_listen: Address = "127.0.0.1:9101"
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
