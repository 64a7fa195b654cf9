"""Adapters that are taken away: they wait for their users, and what the cache has of them goes with them."""

from collections.abc import Callable
from dataclasses import dataclass

from hicache.cache import PrefixCache
from worker.engine.adapters import AdapterPlaces
from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Gone:
    """How an adapter went."""

    failed_sequences: int  # that had to end for it
    dropped_tokens: int  # on the device


OnGone = Callable[[Gone], None]


@dataclass(slots=True)
class _Departure:
    until: float
    on_gone: list[OnGone]
    failed_sequences: int = 0


class Departures:
    """Those that are announced and not complete. The adapter's KV is dropped when nobody adds to it any more."""

    def __init__(self, cache: PrefixCache, adapters: AdapterPlaces) -> None:
        self._cache = cache
        self._adapters = adapters
        self._leaving: dict[str, _Departure] = {}  # by revision

    def __len__(self) -> int:
        return len(self._leaving)

    def announce(self, revision: str, until: float, on_gone: OnGone) -> None:
        """Begin to take an adapter away; one that isn't known is gone already. The earliest `until` counts."""
        known = self._leaving.get(revision)
        if known is not None:
            known.until = min(known.until, until)
            known.on_gone.append(on_gone)
        elif self._adapters.knows(revision):
            self._adapters.retire(revision)
            self._leaving[revision] = _Departure(until, [on_gone])
        else:
            on_gone(Gone(0, 0))

    def out_of_time(self, now: float) -> list[str]:
        """Return the adapters whose users have to end now."""
        return [revision for revision, departure in self._leaving.items() if departure.until <= now]

    def failed(self, sequence: Sequence) -> None:
        """A sequence ends for want of its adapter."""
        departure = self._leaving.get(sequence.request.adapter_revision)
        if departure is not None:
            departure.failed_sequences += 1

    def complete(self) -> None:
        """Let those go that nobody uses any more."""
        for revision in [each for each in self._leaving if self._adapters.num_alive(each) == 0]:
            departure = self._leaving.pop(revision)
            gone = Gone(departure.failed_sequences, self._drop(revision))
            self._adapters.remove(revision)
            for on_gone in departure.on_gone:
                on_gone(gone)

    def _drop(self, revision: str) -> int:
        """Drop what the cache has of an adapter; return how many tokens the device held."""
        found = [each for each in self._cache.namespaces() if each.adapter_revision == revision]
        held = sum(self._cache.holdings(namespace).device for namespace in found)
        for namespace in found:
            self._cache.drop(namespace)
        return held
