"""The routers, by the names that configuration has for them, and somebody who hears whom they choose."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from gateway.routing.cache_aware import CacheAware
from gateway.routing.index import PageIndex
from gateway.routing.router import Candidate, Choice, Placement, Router
from gateway.routing.simple import BySession, LeastLoaded, RoundRobin

_ROUTERS: Final[Mapping[str, Callable[[PageIndex], Router]]] = {
    "cache_aware": CacheAware,
    "round_robin": lambda index: RoundRobin(),
    "least_loaded": lambda index: LeastLoaded(),
    "session": lambda index: BySession(),
}


class ChoiceObserver(Protocol):
    def worker_chosen(self, policy: str, reason: str) -> None: ...


def open_router(policy: str, index: PageIndex, observer: ChoiceObserver) -> Router:
    """Return the router of a policy; the config knows no others."""
    return _Observed(_ROUTERS[policy](index), policy, observer)


class _Observed:
    """Tells of each choice."""

    def __init__(self, router: Router, policy: str, observer: ChoiceObserver) -> None:
        self._router = router
        self._policy = policy
        self._observer = observer

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        choice = self._router.choose(placement, candidates, now)
        self._observer.worker_chosen(self._policy, choice.reason)
        return choice
