"""The choice by what workers have of a prompt and how busy they are: whoever it costs least.

index     how far each worker has the prompt, in one walk
score     what that makes of it in seconds, beside what it has to do already
accounts  what it has been given lately
turns     who was chosen longest ago, where all that is equal
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.routing.accounts import Accounts
from gateway.routing.index import Holder, PageIndex
from gateway.routing.names import NameScheme
from gateway.routing.popularity import Popularity
from gateway.routing.router import Candidate, Choice, Placement, Reason
from gateway.routing.score import Cost, Hit, Wanted, Weights, cost_of, prefill_speeds, price_of
from gateway.routing.turns import Turns

_MAX_EXPLAINED = 8  # workers, those that cost least


@dataclass(frozen=True, slots=True)
class CostFigures:
    """What each candidate would have cost."""

    prompt_tokens: int
    workers: Sequence[str]
    costs: Sequence[Cost]

    def explanation(self) -> Mapping[str, object]:
        least = sorted(range(len(self.costs)), key=lambda i: self.costs[i].total_s)[:_MAX_EXPLAINED]
        return {
            "prompt_tokens": self.prompt_tokens,
            "num_candidates": len(self.costs),
            "candidates": [{"worker": self.workers[i], **self.costs[i].explanation()} for i in least],
        }


class CacheAware:
    """Implements Router."""

    def __init__(self, index: PageIndex, weights: Weights | None = None) -> None:
        self._index = index
        self._weights = weights or Weights()
        self._accounts = Accounts(self._weights.balance_half_life_s, self._weights.warm_up_s)
        self._popularity = Popularity(self._weights.popularity_half_life_s)
        self._turns = Turns()

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        key, weights = placement.key, self._weights
        hits, last_page = self._hits(placement, candidates)
        uses = 1.0 if last_page is None else self._popularity.used(last_page, now)
        usual, speeds = prefill_speeds(candidates, weights.speed_tolerance)
        wanted = Wanted(len(key), price_of(uses, weights), usual, placement.adapter_revision)
        given_s = self._accounts.seconds(candidates, now)
        mean_s = sum(given_s) / len(given_s)
        costs = [
            cost_of(candidate, hit, wanted, speed, given - mean_s, weights)
            for candidate, hit, speed, given in zip(candidates, hits, speeds, given_s, strict=True)
        ]
        best = min(range(len(costs)), key=lambda i: (costs[i].total_s, self._turns.last(candidates[i].worker)))
        worker = candidates[best].worker
        reason = self._reason(worker, hits[best], hits, now)
        self._turns.took(worker, len(candidates))
        self._accounts.charge(worker, costs[best].compute_s, now)
        return Choice(worker, reason, CostFigures(len(key), [each.worker for each in candidates], costs))

    def _hits(self, placement: Placement, candidates: Sequence[Candidate]) -> tuple[list[Hit], bytes | None]:
        """Return what each has of the prompt, and the name of the last page that any has.

        One walk for each way in which they name pages, mostly one in all.
        """
        hits = [Hit()] * len(candidates)
        last_page: bytes | None = None
        by_scheme: dict[NameScheme, list[int]] = {}
        for position, candidate in enumerate(candidates):
            if candidate.pages is not None:
                by_scheme.setdefault(candidate.pages.scheme, []).append(position)
        for scheme, positions in by_scheme.items():
            names = self._index.names.of(placement.key, scheme)
            holders = dict[int, Holder]()  # by bit
            for position in positions:
                candidate = candidates[position]
                assert candidate.pages is not None
                holders[candidate.pages.holder.bit] = candidate.pages.holder
                if candidate.store is not None:
                    holders[candidate.store.bit] = candidate.store
            depths = dict(zip(holders, self._index.match(names, list(holders.values())), strict=True))
            deepest = max(depth.held for depth in depths.values())
            last_page = names[deepest - 1] if deepest else last_page
            for position in positions:
                candidate = candidates[position]
                pages = candidate.pages
                assert pages is not None
                depth = depths[pages.holder.bit]
                stored = depths[candidate.store.bit].held if candidate.store is not None else 0
                if depth.held or stored:
                    device = pages.tokens(depth.device, placement.key)
                    held = pages.tokens(depth.held, placement.key)
                    hits[position] = Hit(device, held - device, max(0, pages.tokens(stored, placement.key) - held))
        return hits, last_page

    def _reason(self, worker: str, hit: Hit, hits: Sequence[Hit], now: float) -> Reason:
        if len(hits) == 1:
            return "only"
        if hit.device + hit.host > min(each.device + each.host for each in hits):
            return "prefix"
        return "warm_up" if self._accounts.is_warming(worker, now) else "load"
