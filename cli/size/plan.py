"""The arithmetic of capacity: from a model's geometry and the memory there is to slots, tokens and settings.

Slots are counted by the worker's own code (`worker.model.memory`), so a worker with these settings has as many. Nothing
is looked at or measured here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cli.size.units import shown_bytes
from hicache.keys import TOKEN_BYTES
from hicache.radix.shares import Share, Shares
from hicache.storage.frame import HEADER_BYTES
from hicache.tiers.shapes import LayerShape, bytes_per_token
from worker.config import CacheConfig, ShareConfig, StorageConfig
from worker.errors import WorkerStartError
from worker.model.memory import DEFAULT_POOL_BYTES, GIB, HostSize, device_slots, host_slots

ITEM_BYTES: Final[Mapping[str, int]] = {"bf16": 2, "fp32": 4}
DEFAULT_STORAGE_URL: Final = "file:///var/lib/radixgate/pages"
Device = Literal["cuda", "cpu"]


class DoesNotFitError(Exception):
    """What is asked for needs more memory than there is; the message says how much."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """bf16 or fp32: what weights and KV are stored as."""

    name: str

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.name]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model, as far as memory is concerned."""

    name: str
    layers: tuple[LayerShape, ...]
    number_format: NumberFormat
    num_parameters: int | None = None  # None: unknown, so its weights count nothing
    context_length: int | None = None

    @property
    def bytes_per_token(self) -> int:
        return bytes_per_token(self.layers, self.number_format)

    @property
    def weight_bytes(self) -> int:
        return (self.num_parameters or 0) * self.number_format.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to use. On "cpu" the device's memory is the main memory, in which everything lies."""

    device: Device = "cuda"
    device_bytes: int | None = None  # None: the pool that a worker takes by itself
    utilization: float = 0.9  # of the device's memory, for weights and pool; passes need the rest
    host_bytes: int | None = None  # of the host pool; None: as a worker chooses
    storage_bytes: int = 0
    overhead_bytes: int = 2 * GIB  # of a worker's process, beside weights and pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is to be served."""

    context_tokens: int = 4096  # of one conversation
    concurrent: int = 1  # sequences that run at a time
    page_size: int = 1
    storage_page_size: int = 64
    floors: Mapping[str, float] = field(default_factory=dict)  # by tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What one tier holds."""

    tier: str
    num_bytes: int
    tokens: int  # slots; in storage, tokens of whole pages
    conversations: int  # of `context_tokens`, one beside the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a tenant's share promises it, in slots."""

    tenant: str
    device_slots: int
    host_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of it."""

    model: str
    device: Device
    number_format: str
    bytes_per_token: int
    layers: int
    num_parameters: int | None
    weight_bytes: int
    context_length: int | None
    context_tokens: int
    concurrent: int
    slots_for_concurrent: int
    slots_beside_concurrent: int  # for prefixes nobody computes with right now; negative: they do not fit
    tiers: tuple[Tier, ...]
    floors: tuple[Floor, ...]
    device_bytes_given: int | None  # None: the pool is what a worker takes by itself
    device_bytes_needed: int  # weights and pool
    main_memory_bytes: int  # to request for a worker's process
    pinned_bytes: int  # of it, locked for copies to a GPU
    overhead_bytes: int
    cache: CacheConfig


def plan(geometry: Geometry, machine: Machine, traffic: Traffic) -> Plan:
    """Return what fits. Raises DoesNotFitError, or WorkerStartError for a pool of less than a page."""
    cache = _cache_config(geometry, machine, traffic)
    size = geometry.bytes_per_token
    device, host = cache.num_slots or 0, cache.host_slots or 0
    tokens = _pages_in(machine.storage_bytes, traffic.storage_page_size, size) * traffic.storage_page_size
    running = traffic.concurrent * _whole(traffic.context_tokens, traffic.page_size)
    return Plan(
        model=geometry.name,
        device=machine.device,
        number_format=geometry.number_format.name,
        bytes_per_token=size,
        layers=len(geometry.layers),
        num_parameters=geometry.num_parameters,
        weight_bytes=geometry.weight_bytes,
        context_length=geometry.context_length,
        context_tokens=traffic.context_tokens,
        concurrent=traffic.concurrent,
        slots_for_concurrent=running,
        slots_beside_concurrent=device - running,
        tiers=(
            _tier("device", device * size, device, traffic, traffic.page_size),
            _tier("host", host * size, host, traffic, traffic.page_size),
            _tier("storage", machine.storage_bytes, tokens, traffic, traffic.storage_page_size),
        ),
        floors=_floors(traffic, device, host),
        device_bytes_given=machine.device_bytes,
        device_bytes_needed=geometry.weight_bytes + device * size,
        main_memory_bytes=_main_memory(geometry, machine, device * size, host * size),
        pinned_bytes=host * size if machine.device == "cuda" else 0,
        overhead_bytes=machine.overhead_bytes,
        cache=cache,
    )


def _cache_config(geometry: Geometry, machine: Machine, traffic: Traffic) -> CacheConfig:
    """Return the settings of a worker's cache, with both pools in slots."""
    size, page_size = geometry.bytes_per_token, traffic.page_size
    sized = CacheConfig(
        memory_bytes=_pool_bytes(geometry, machine), page_size=page_size, host_bytes=machine.host_bytes,
    )  # fmt: skip
    num_slots = device_slots(sized, size, lambda: 0)
    host = _host(sized, machine, num_slots=num_slots, size=size)
    storage = StorageConfig()
    if machine.storage_bytes:
        if not host.num_slots:
            raise DoesNotFitError("storage needs a host pool, through which its pages pass: give --host-memory")
        if not _pages_in(machine.storage_bytes, traffic.storage_page_size, size):
            raise DoesNotFitError(f"--storage ({machine.storage_bytes} bytes) is less than one page")
        storage = StorageConfig(
            url=DEFAULT_STORAGE_URL, max_bytes=machine.storage_bytes, page_size=traffic.storage_page_size
        )
    shares = {tenant: ShareConfig(floor=floor) for tenant, floor in traffic.floors.items()}
    return dataclasses.replace(
        sized, memory_bytes=None, num_slots=num_slots, host_bytes=None, host_slots=host.num_slots,
        storage=storage, shares=shares,
    )  # fmt: skip


def _pool_bytes(geometry: Geometry, machine: Machine) -> int:
    if machine.device_bytes is None:
        return DEFAULT_POOL_BYTES
    usable = int(machine.device_bytes * machine.utilization)
    taken = geometry.weight_bytes
    parts = [f"{shown_bytes(geometry.weight_bytes)} for weights"]
    if machine.device == "cpu":
        taken += machine.overhead_bytes + (machine.host_bytes or 0)
        parts.append(f"{shown_bytes(machine.overhead_bytes)} for the process")
        parts.append(f"{shown_bytes(machine.host_bytes or 0)} for the host pool")
    if taken >= usable:
        raise DoesNotFitError(
            f"nothing is left for KV: of {shown_bytes(machine.device_bytes)}, {machine.utilization:.0%} are "
            f"{shown_bytes(usable)}, and it takes {', '.join(parts)}"
        )
    return usable - taken


def _host(sized: CacheConfig, machine: Machine, *, num_slots: int, size: int) -> HostSize:
    """Return the host tier's size; where nothing is set, as beside a GPU with memory enough."""
    if machine.host_bytes == 0:
        return HostSize(0, "host_bytes")
    enough = 8 * num_slots * size
    on_gpu = machine.device == "cuda"
    return host_slots(sized, num_slots=num_slots, bytes_per_token=size, on_gpu=on_gpu, available_bytes=enough)


def _main_memory(geometry: Geometry, machine: Machine, pool_bytes: int, host_bytes: int) -> int:
    if machine.device == "cpu":
        return geometry.weight_bytes + pool_bytes + host_bytes + machine.overhead_bytes
    # Weights pass through main memory on their way to the device, before the host pool is made.
    return max(geometry.weight_bytes, host_bytes) + machine.overhead_bytes


def _tier(name: str, num_bytes: int, tokens: int, traffic: Traffic, grain: int) -> Tier:
    conversations = tokens // _whole(traffic.context_tokens, grain)
    return Tier(tier=name, num_bytes=num_bytes, tokens=tokens, conversations=conversations)


def _pages_in(storage_bytes: int, page_size: int, size: int) -> int:
    return storage_bytes // (page_size * size + HEADER_BYTES)


def _whole(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _floors(traffic: Traffic, num_slots: int, num_host_slots: int) -> tuple[Floor, ...]:
    """Return the floors in slots, as the cache computes them."""
    if not traffic.floors:
        return ()
    try:
        shares = Shares(
            {tenant: Share(floor) for tenant, floor in traffic.floors.items()},
            num_slots, num_host_slots, traffic.page_size,
        )  # fmt: skip
    except ValueError as error:
        raise WorkerStartError(f"--floor: {error}") from error
    accounts = ((tenant, shares.of(tenant)) for tenant in traffic.floors)
    return tuple(
        Floor(
            tenant=tenant,
            device_slots=account.floor_bytes // TOKEN_BYTES,
            host_slots=account.host_floor_bytes // TOKEN_BYTES,
        )
        for tenant, account in accounts
    )
