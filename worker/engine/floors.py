"""What tenants are promised of the cache, as their requests say it."""

from collections import OrderedDict
from collections.abc import Iterable

import structlog

from hicache.cache import PrefixCache
from worker.engine.ports import Request
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

_MAX_TOLD = 1024  # tenants that are remembered as told of, and as cut


class Floors:
    """Keeps the cache's shares as the latest request of each tenant has them.

    Whoever is here goes on: no floor leaves less to others than one of their sequences may come to need.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._told: OrderedDict[str, None] = OrderedDict()
        self._cut: OrderedDict[str, int] = OrderedDict()  # by tenant, what does not fit; last who said it last
        self.cut_tokens = 0  # of all of them

    def say(self, request: Request, alive: Iterable[Sequence]) -> None:
        """A request says what its tenant is promised. `alive` are those that are here before it."""
        tenant, asked = request.tenant, request.cache_floor_tokens
        largest = 0
        if self._cache.would_promise_more(tenant, asked):
            others = [each.capacity for each in alive if each.request.tenant != tenant]
            page_size = self._cache.page_size
            largest = -(-max(others, default=0) // page_size) * page_size
        promised = self._cache.set_share(tenant, asked, request.weight, largest_lease=largest)
        missing = max(0, asked // self._cache.page_size * self._cache.page_size - promised)
        self._note(tenant, missing)
        if missing:
            self._tell(request, promised)

    def _note(self, tenant: str, missing: int) -> None:
        self.cut_tokens += missing - self._cut.pop(tenant, 0)
        if missing:
            self._cut[tenant] = missing
            if len(self._cut) > _MAX_TOLD:
                self.cut_tokens -= self._cut.popitem(last=False)[1]

    def _tell(self, request: Request, promised: int) -> None:
        tenant, asked = request.tenant, request.cache_floor_tokens
        if tenant in self._told:
            return
        self._told[tenant] = None
        if len(self._told) > _MAX_TOLD:
            self._told.popitem(last=False)
        _log.warning(
            "a cache floor does not fit beside the others", tenant=tenant, asked=asked, promised=promised,
            request_id=request.request_id,
        )  # fmt: skip
