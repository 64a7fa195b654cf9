"""Keeps the number of label values bounded: the busiest names get a label of their own, the rest share `other`.

Knows no Prometheus; time is passed in. Exact figures for every tenant are not the business of metrics.
"""

from collections.abc import Callable
from typing import Final

OTHER: Final = "other"

# For how long the series of a name that has lost its label stay. Scrapers that come at least this often see all that
# was counted in them, so that no rate misses it.
LINGER_S: Final = 120.0

_MARGIN = 2.0  # how much busier a newcomer must be than the one it replaces, so that two equals don't swap for ever
_CANDIDATES_PER_LABEL = 4
_RESCALE_AFTER_HALF_LIVES = 64.0


def most_leaving(limit: int) -> int:
    """Return how many names may have series beyond `limit`, because they have just lost their label."""
    return max(1, limit // 4)


class TopLabels:
    """The busiest `limit` names, by weight that fades with time.

        unknown ──busy──▶ labelled ──a clearly busier one──▶ leaving ──LINGER_S──▶ forgotten
                              ▲                                 │
                              └──────────busy again─────────────┘

    Invariant: at most `limit` names have a label, at most `most_leaving(limit)` are leaving, and what is remembered of
    the others is bounded too. While so many are leaving nobody loses its label. `on_forgotten` is called with a name
    whose series have to go. Whatever is counted after a name has lost its label is counted under `other`, and was not
    counted under its own name, so sums over all labels stay exact.
    The empty name (nobody) and the name `other` label as themselves and take no place.
    """

    def __init__(
        self,
        limit: int,
        on_forgotten: Callable[[str], None],
        *,
        half_life_s: float = 600.0,
        linger_s: float = LINGER_S,
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._limit = limit
        self._on_forgotten = on_forgotten
        self._half_life_s = half_life_s
        self._linger_s = linger_s
        self._labelled: dict[str, float] = {}  # name → faded weight, all relative to the same moment
        self._leaving: dict[str, float] = {}  # name → when it is forgotten, the earliest first
        self._candidates: dict[str, float] = {}
        self._epoch: float | None = None  # the moment at which one unit of weight counts as 1

    def __len__(self) -> int:
        return len(self._labelled)

    def label(self, name: str) -> str:
        """Return the label of `name` as things stand."""
        return name if name in self._labelled or not name else OTHER

    def observe(self, name: str, weight: float, *, now: float) -> str:
        """Count work done for `name` and return its label, which may be new. `now` never runs backwards."""
        self._forget_those_due(now)
        if not name or name == OTHER:
            return name
        weight *= self._scale(now)
        if name in self._labelled:
            self._labelled[name] += weight
        elif len(self._labelled) < self._limit:
            self._labelled[name] = weight
        else:
            self._compete(name, weight, now)
        return self.label(name)

    def _compete(self, name: str, weight: float, now: float) -> None:
        total = self._candidates.pop(name, 0.0) + weight
        weakest = min(self._labelled, key=self._labelled.__getitem__)
        has_room = name in self._leaving or len(self._leaving) < most_leaving(self._limit)
        if total > _MARGIN * self._labelled[weakest] and has_room:
            self._leaving.pop(name, None)
            self._leaving[weakest] = now + self._linger_s
            self._candidates[weakest] = self._labelled.pop(weakest)
            self._labelled[name] = total
        else:
            self._candidates[name] = total
        if len(self._candidates) > _CANDIDATES_PER_LABEL * self._limit:
            del self._candidates[min(self._candidates, key=self._candidates.__getitem__)]

    def _forget_those_due(self, now: float) -> None:
        while self._leaving:
            name, due = next(iter(self._leaving.items()))
            if now < due:
                return
            del self._leaving[name]
            self._on_forgotten(name)

    def _scale(self, now: float) -> float:
        """Return what one unit of weight is worth now: growing new weights fades all old ones without touching them."""
        if self._epoch is None:
            self._epoch = now
        half_lives = (now - self._epoch) / self._half_life_s
        if half_lives > _RESCALE_AFTER_HALF_LIVES:
            shrink = 2.0**-half_lives
            for weights in (self._labelled, self._candidates):
                for name in weights:
                    weights[name] *= shrink
            self._epoch = now
            return 1.0
        return float(2.0**half_lives)
