"""How many slots the pools get. Plain arithmetic: nothing is looked at, nothing is allocated."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from worker.config import CacheConfig
from worker.errors import PoolTooSmallError, WorkerStartError

GIB = 1 << 30
# Left alone, a pool takes no more than this, and no more than its share of what is free.
DEFAULT_POOL_BYTES = GIB
DEFAULT_SHARE = 4
GPU_HOST_RATIO: Final = 2.0  # host slots for each device slot, where nothing is set
GPU_HOST_SHARE: Final = 0.5  # of the memory that is available, at most


@dataclass(frozen=True, slots=True)
class HostSize:
    """How many slots the host tier has, 0 for no such tier, and which setting said so."""

    num_slots: int
    setting: str


def default_pool_bytes(available_bytes: int) -> int:
    return min(DEFAULT_POOL_BYTES, available_bytes // DEFAULT_SHARE)


def device_slots(config: CacheConfig, bytes_per_token: int, available_bytes: Callable[[], int]) -> int:
    """Return how many slots the device's pool has: as configured, or as many as fit its memory.

    `available_bytes` is asked where nothing is configured. Raises PoolTooSmallError if not even a page fits.
    """
    if config.num_slots is not None:
        return config.num_slots
    pool_bytes = config.memory_bytes or default_pool_bytes(available_bytes())
    return slots_in(pool_bytes, bytes_per_token, config.page_size)


def slots_in(pool_bytes: int, bytes_per_token: int, page_size: int) -> int:
    """Return how many slots fit into `pool_bytes`, in whole pages.

    Raises PoolTooSmallError, naming what one page needs, if not even that fits.
    """
    pages = pool_bytes // (bytes_per_token * page_size)
    if pages == 0:
        raise PoolTooSmallError(
            f"worker.cache.memory_bytes: a pool of {pool_bytes} bytes is too small, one page of {page_size} tokens "
            f"needs {bytes_per_token * page_size}"
        )
    return pages * page_size


def host_slots(
    config: CacheConfig, *, num_slots: int, bytes_per_token: int, on_gpu: bool, available_bytes: int
) -> HostSize:
    """Return how many slots the host tier has beside `num_slots` of the device, in whole pages.

    Raises WorkerStartError for less than a page.
    """
    if config.host_slots is not None:
        return HostSize(config.host_slots, "host_slots")
    value: float
    if config.host_bytes is not None:
        setting, value, wanted = "host_bytes", config.host_bytes, config.host_bytes // bytes_per_token
    elif config.host_ratio is not None:
        wanted = int(min(config.host_ratio * num_slots, sys.maxsize))  # the pool says what that would take
        setting, value = "host_ratio", config.host_ratio
    elif on_gpu:
        fitting = int(GPU_HOST_SHARE * available_bytes) // bytes_per_token
        setting, value, wanted = "host_ratio", 0.0, min(int(GPU_HOST_RATIO * num_slots), fitting)
    else:
        return HostSize(0, "host_ratio")
    whole = wanted // config.page_size * config.page_size
    if value and not whole:
        raise WorkerStartError(
            f"worker.cache.{setting} ({value:g}) is less than one page of the host tier: {config.page_size} slots of "
            f"{bytes_per_token} bytes, where the device has {num_slots}"
        )
    return HostSize(whole, setting)
