"""What has changed in a cache since it was told last."""

from hicache.cache import PrefixCache
from hicache.events import Snapshot
from worker.engine.ports import CacheNews


class CacheFeed:
    """Follows a cache's event log, if it has one. Used by the cache's owner only."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._told: int | None = None  # the event up to which all is told; None: nothing, not even that there is none

    def take(self) -> CacheNews | None:
        """Return what has happened since the last call; None: nothing. The first time, since the log began.

        Where more has happened than the log keeps there are no events, and who reads sees a gap.
        """
        log = self._cache.events
        if log is None or log.seq == self._told:
            return None
        events = log.since(self._told or 0) or ()
        self._told = log.seq
        return CacheNews(tuple(events), log.digest())

    def snapshot(self) -> Snapshot:
        """Return all that the cache holds. Raises ValueError for one without a log."""
        return self._cache.snapshot()
