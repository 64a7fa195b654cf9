"""Which leaf goes first when slots run out, by the name of the policy that says so."""

from collections.abc import Callable

from hicache.radix.policy.base import Entry, EvictionPolicy, Rank, RankedQueue, VictimQueue
from hicache.radix.policy.classic import FIFO, FILO, LFU, LRU, MRU, Priority
from hicache.radix.policy.lhd import LHD
from hicache.radix.policy.slru import SLRU

__all__ = [
    "FIFO",
    "FILO",
    "LFU",
    "LHD",
    "LRU",
    "MRU",
    "NAMES",
    "SLRU",
    "Entry",
    "EvictionPolicy",
    "Priority",
    "Rank",
    "RankedQueue",
    "VictimQueue",
    "by_name",
]

_POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    policy.name: policy for policy in (LRU, LFU, FIFO, MRU, FILO, SLRU, Priority, LHD)
}
NAMES = tuple(_POLICIES)


def by_name(name: str) -> EvictionPolicy:
    """Return a new policy of that name with its default parameters; ValueError names the ones there are."""
    if name not in _POLICIES:
        raise ValueError(f"unknown eviction policy {name!r}, expected one of {', '.join(NAMES)}")
    return _POLICIES[name]()
