"""What the cache has of those that wait, remembered until the cache changes. Decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from hicache.cache import Hit, PrefixCache
from hicache.keys import PrefixKey
from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Known:
    key: PrefixKey
    changes: tuple[int, ...]
    hit: Hit


class KnownHits:
    """The hits of waiting sequences. A cache is asked again only when the sequence's own namespaces have changed."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._known: dict[int, _Known] = {}  # by order of the sequence
        self.on_found: Callable[[Sequence, Hit], None] = lambda _sequence, _hit: None  # told of each new answer

    @property
    def page_size(self) -> int:
        return self._cache.page_size

    def of(self, sequence: Sequence) -> Hit:
        """Return what `sequence` would hit if it started now."""
        changes = self._cache.changes(sequence.key)
        known = self._known.get(sequence.order)
        if known is not None and known.changes == changes and known.key is sequence.key:
            return known.hit
        hit = self._cache.peek(sequence.key, max_tokens=sequence.max_cached_tokens)
        self._known[sequence.order] = _Known(sequence.key, changes, hit)
        self.on_found(sequence, hit)
        return hit

    def cached_tokens(self, sequence: Sequence) -> int:
        return self.of(sequence).total

    def forget(self, sequence: Sequence) -> None:
        """`sequence` doesn't wait any more. Harmless if it is not known."""
        self._known.pop(sequence.order, None)
