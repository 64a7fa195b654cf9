"""Puts a worker's cache together: the device pool, and the host and storage tiers below it if they are configured."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

import structlog
import torch

from hicache.backing import BackingRules
from hicache.cache import PrefixCache
from hicache.copies.calibration import calibrate
from hicache.copies.copier import ThreadTransfer
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.cuda_copier import CudaTransfer
from hicache.copies.transfer import Transfer
from hicache.events import EventLog
from hicache.host import MirrorRules, WriteBack, WritePolicy, WriteThrough, WriteThroughSelective
from hicache.radix import policy
from hicache.radix.naming import PageNames
from hicache.radix.shares import Share
from hicache.storage.frame import HEADER_BYTES
from hicache.storage.io import StorageIo
from hicache.storage.opening import StoreLimits, identity_of, open_store
from hicache.storage.store import PageStore, StoreConfigError, StoreUnavailableError
from hicache.tiered import HostTier, StorageTier, TieredCache
from hicache.tiers.device import DevicePool
from hicache.tiers.host import HostPool, HostPoolError
from worker.config import CacheConfig
from worker.errors import WorkerStartError
from worker.model.memory import HostSize, host_slots

_log = structlog.get_logger(__name__)

CALIBRATION_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0

_TOLD_EVENTS: Final = 16_384
"""More events than these between two steps, and gateways ask for a snapshot."""


class SizedPool(Protocol):
    """What the size of the host tier follows."""

    @property
    def num_slots(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...
    @property
    def device(self) -> torch.device: ...


def transfer_between(pool: DevicePool, host_pool: HostPool, on_done: Callable[[], None]) -> Transfer:
    """Return what copies between two pools, as fast as their devices can."""
    if pool.device.type == "cuda":
        return CudaTransfer(pool, host_pool, on_done=on_done)
    return ThreadTransfer(pool, host_pool, on_done=on_done)


@dataclass(frozen=True, slots=True)
class Movement:
    """How KV moves between tiers: what copies between pools, and what stands before a store."""

    transfer: Callable[[DevicePool, HostPool, Callable[[], None]], Transfer] = transfer_between
    store: Callable[[PageStore], PageStore] = lambda store: store


@dataclass(frozen=True, slots=True)
class Tiers:
    """A worker's cache, with what runs beside it.

    `names` are those of pages, in storage and in what others are told of the cache. Workers with the same `store_id`
    share storage; "": there is none.
    """

    cache: PrefixCache
    names: PageNames
    store_id: str = ""
    transfer: Transfer | None = None
    storage: StorageIo | None = None
    store: PageStore | None = None  # the storage thread's; others may ask it for figures only
    host_pool: HostPool | None = None

    def close(self) -> None:
        """End copies and storage. To be called when the cache's owner has ended."""
        if self.transfer is not None and not self.transfer.close(CLOSE_TIMEOUT_S):
            _log.error("copies between device and host did not end", timeout_s=CLOSE_TIMEOUT_S)
        if self.storage is not None and not self.storage.close(CLOSE_TIMEOUT_S):
            _log.error("storage did not end", timeout_s=CLOSE_TIMEOUT_S)


def build_tiers(
    config: CacheConfig,
    pool: DevicePool,
    *,
    revision: str,
    available_bytes: int,
    on_done: Callable[[], None],
    movement: Movement | None = None,
) -> Tiers:
    """Return the cache over `pool`. `revision` names the model, for storage; `available_bytes` of memory are free.

    `on_done` is called from any thread when something that the cache waits for has ended. Raises WorkerStartError,
    naming the setting, for a host pool or a store that cannot be had.
    """
    movement = movement or Movement()
    size = host_size(config, pool, available_bytes)
    names = page_names(config, pool, revision)
    events = EventLog(names, capacity=_TOLD_EVENTS)
    shares = {tenant: Share(share.floor, share.weight) for tenant, share in config.shares.items()}
    if not size.num_slots:
        if config.storage.url is not None:
            raise WorkerStartError(
                "worker.cache.storage.url needs a host tier: set worker.cache.host_ratio, host_bytes or host_slots"
            )
        eviction = policy.by_name(config.policy)
        plain = PrefixCache(pool.num_slots, page_size=config.page_size, policy=eviction, shares=shares, events=events)
        return Tiers(plain, names)
    store = _open_store(config, size, pool.planes.layout.page_bytes(config.storage.page_size))
    host_pool = _host_pool(config, pool, size, available_bytes)
    transfer = movement.transfer(pool, host_pool, on_done)
    cost = measured_cost(config, transfer, num_slots=min(pool.num_slots, size.num_slots))
    rules = MirrorRules(
        low_watermark=config.low_watermark,
        high_watermark=config.high_watermark,
        copy_timeout_s=config.copy_timeout_s,
    )
    storage = None if store is None else StorageIo(movement.store(store), on_done=on_done)
    cache = TieredCache(
        pool.num_slots,
        HostTier(size.num_slots, transfer, _write_policy(config), rules, cost),
        page_size=config.page_size,
        policy=policy.by_name(config.policy),
        shares=shares,
        storage=None if storage is None else _storage_tier(config, storage, host_pool, names),
        events=events,
    )
    _log.info(
        "host tier ready", num_slots=size.num_slots, num_bytes=host_pool.num_bytes, pinned=host_pool.pinned,
        load_tokens_per_s=cost.load_tokens_per_s and round(cost.load_tokens_per_s),
        storage=None if store is None else store.name,
    )  # fmt: skip
    return Tiers(cache, names, _store_id(config, names), transfer, storage, store, host_pool)


def page_names(config: CacheConfig, pool: DevicePool, revision: str) -> PageNames:
    """Return what pages are called that hold KV of this model in pools of this layout, with storage or without.

    They have as many tokens as those of storage, or as the next multiple of the cache's own.
    """
    # Whatever gives KV another meaning or another shape is part of every page's name.
    encoded = revision.encode()
    seed = b"radixgate.kv" + len(encoded).to_bytes(4, "little") + encoded + pool.layout()
    size = -(-config.storage.page_size // config.page_size) * config.page_size
    return PageNames(size, seed)


def host_size(config: CacheConfig, pool: SizedPool, available_bytes: int) -> HostSize:
    """Return how many slots the host tier is to have, in whole pages. Raises WorkerStartError for less than a page."""
    return host_slots(
        config,
        num_slots=pool.num_slots,
        bytes_per_token=pool.bytes_per_token,
        on_gpu=pool.device.type == "cuda",
        available_bytes=available_bytes,
    )


def measured_cost(
    config: CacheConfig, transfer: Transfer, *, num_slots: int, timeout_s: float = CALIBRATION_TIMEOUT_S
) -> LoadCostModel:
    """Return what chooses between loading and computing, with the speed of loads measured.

    Nobody uses the first `num_slots` slots of both pools yet. Raises WorkerStartError if a load does not end.
    """
    cost = LoadCostModel(LoadCostConfig(load_back_threshold=config.load_back_threshold))
    try:
        if not calibrate(cost, transfer, num_slots=num_slots, timeout_s=timeout_s):
            _log.warning("a first load from the host failed: the speed of loads is not known yet")
    except TimeoutError as error:
        raise WorkerStartError(
            f"copies between host and device do not work: {error}; worker.cache.host_slots = 0 goes without a host tier"
        ) from error
    return cost


def _host_pool(config: CacheConfig, pool: DevicePool, size: HostSize, available_bytes: int) -> HostPool:
    try:
        host_pool = HostPool(pool.layers, size.num_slots, pool.dtype, pin=config.pin, available_bytes=available_bytes)
    except HostPoolError as error:
        raise WorkerStartError(f"worker.cache.{size.setting}: {error}") from error
    warn_if_pageable(host_pool, pool.device)
    return host_pool


def warn_if_pageable(host_pool: HostPool, device: torch.device) -> None:
    """Say so where a GPU copies from memory that could not be pinned."""
    if device.type == "cuda" and not host_pool.pinned:
        _log.warning("the host pool is not pinned: copies are slower", reason=host_pool.unpinned_reason)


def _write_policy(config: CacheConfig) -> WritePolicy:
    match config.write_policy:
        case "write_back":
            return WriteBack()
        case "write_through":
            return WriteThrough()
        case "write_through_selective":
            return WriteThroughSelective(config.hit_threshold)


def _open_store(config: CacheConfig, size: HostSize, page_bytes: int) -> PageStore | None:
    storage = config.storage
    if storage.url is None:
        return None
    if storage.page_size > size.num_slots:
        raise WorkerStartError(
            f"worker.cache.storage.page_size ({storage.page_size}) must be at most the slots of the host tier "
            f"({size.num_slots}, from worker.cache.{size.setting})"
        )
    for name, least in (("max_prefetch_bytes", page_bytes), ("max_bytes", page_bytes + HEADER_BYTES)):
        if getattr(storage, name) < least:
            raise WorkerStartError(
                f"worker.cache.storage.{name} ({getattr(storage, name)}) must be at least one page of "
                f"{storage.page_size} tokens: {least} bytes"
            )
    limits = StoreLimits(max_bytes=storage.max_bytes, ttl_s=storage.ttl_s, timeout_s=storage.timeout_s)
    try:
        return open_store(storage.url, limits)
    except (StoreConfigError, StoreUnavailableError) as error:
        raise WorkerStartError(f"worker.cache.{error}") from error


def _store_id(config: CacheConfig, names: PageNames) -> str:
    """Return a digest of which store it is and of what pages are called there."""
    if config.storage.url is None:
        return ""
    identity = identity_of(config.storage.url) or secrets.token_hex(16)  # one's own
    return blake2b(identity.encode() + b"\0" + names.seed, digest_size=16, person=b"radixgate.store").hexdigest()


def _storage_tier(config: CacheConfig, io: StorageIo, host_pool: HostPool, names: PageNames) -> StorageTier:
    storage = config.storage
    rules = BackingRules(
        max_fetch_bytes=storage.max_prefetch_bytes,
        fetch_timeout_s=storage.prefetch_timeout_s,
        min_fetch_tokens=storage.page_size,
    )
    return StorageTier(io, host_pool, names, rules)
