"""Namespaces that are dropped from the cache while sequences use them: what those leave behind goes when they end."""

from collections.abc import Iterable

from hicache.cache import Holdings, PrefixCache
from hicache.keys import Namespace
from worker.engine.sequence import Sequence


class Purges:
    """Drops namespaces, and drops them again behind those that were here by then.

    A sequence that runs goes on with the slots it holds, and the cache learns of nothing more that it computes. One
    that waits, or has to start again after a pause, needs the cache to share and to resume, and uses the namespace as
    before: when the last one of these has ended, the namespace is dropped once more, with whatever is in it by then.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        # Who was here when a namespace was dropped, and how often it had started by then.
        self._users: dict[Namespace, dict[Sequence, int]] = {}
        self._used: set[Namespace] = set()  # of these, those that somebody has used since

    def drop(self, namespaces: Iterable[Namespace], alive: Iterable[Sequence]) -> Holdings:
        """Drop what the cache has of namespaces, which may be unknown; return what was free at once."""
        wanted = dict.fromkeys(namespaces)
        freed = [self._cache.drop(namespace) for namespace in wanted]
        for sequence in alive:
            for namespace in sequence.request.key.namespaces:
                if namespace in wanted:
                    self._users.setdefault(namespace, {})[sequence] = sequence.num_starts
        return Holdings(sum(each.device for each in freed), sum(each.host for each in freed))

    def born(self, leader: Sequence, branches: Iterable[Sequence]) -> None:
        """A sequence has become several."""
        for namespace in self._namespaces(leader):
            self._users[namespace].update({branch: branch.num_starts for branch in branches})

    def ended(self, sequence: Sequence) -> None:
        """A sequence holds nothing of the cache any more, and never will again."""
        for namespace in self._namespaces(sequence):
            users = self._users[namespace]
            if sequence.num_starts > users.pop(sequence):
                self._used.add(namespace)
            if not users:
                del self._users[namespace]
                if namespace in self._used:
                    self._used.remove(namespace)
                    self._cache.drop(namespace)

    def check(self, alive: Iterable[Sequence]) -> None:
        """Verify the invariants; raises AssertionError."""
        here = set(alive)
        assert all(self._users.values()), "a dropped namespace is remembered for nobody"
        assert all(here.issuperset(users) for users in self._users.values()), "somebody is remembered who has ended"
        assert self._used <= self._users.keys(), "a dropped namespace was to be dropped again"

    def _namespaces(self, sequence: Sequence) -> list[Namespace]:
        if not self._users:
            return []
        return [each for each in sequence.request.key.namespaces if sequence in self._users.get(each, ())]
