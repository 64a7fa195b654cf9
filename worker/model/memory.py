"""How many slots a pool gets. Plain arithmetic."""

from worker.errors import PoolTooSmallError

GIB = 1 << 30
# Left alone, a pool takes no more than this, and no more than its share of what is free.
DEFAULT_POOL_BYTES = GIB
DEFAULT_SHARE = 4


def default_pool_bytes(available_bytes: int) -> int:
    return min(DEFAULT_POOL_BYTES, available_bytes // DEFAULT_SHARE)


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
