"""How many sequences may be here at a time, and who gives way when there are more. Knows no cache and no clock.

Without the latter a tenant that floods this worker would fill the line, and lock all others out of it.
"""

from collections.abc import Iterable

from worker.engine.completions import Completions
from worker.engine.ports import Request
from worker.engine.sequence import Sequence
from worker.errors import Failure, FailureCode


class Room:
    """As many completions as may run or wait.

    Where all of it is taken, a tenant that has no more than its fair share of it, by weight, still gets what it asks
    for: the newest requests that have not begun make room, of tenants above their share and of no higher priority.
    """

    def __init__(self, completions: Completions, max_running: int, max_waiting: int) -> None:
        """`completions` are those that are here; they are looked at, and not changed."""
        self._completions = completions
        self._capacity = max_running + max_waiting
        self._limits = f"the limits are {max_running} running and {max_waiting} waiting"

    def refusal(self, request: Request) -> Failure | None:
        """Return why there is no room for a request, whoever gives way."""
        n = request.num_completions
        if n > self._capacity:
            return Failure(FailureCode.INVALID_ARGUMENT, f"n is {n}; {self._limits}", "sampling.n")
        if self._missing(request) <= 0 or self._gives_way(request):
            return None
        return self._overload()

    def give_way(self, request: Request) -> tuple[tuple[Sequence, ...], Failure]:
        """Return whose requests are to end so that a new one that was not refused has room, and what they are told."""
        return self._gives_way(request), self._overload()

    def _overload(self) -> Failure:
        return Failure(FailureCode.OVERLOADED, f"{len(self._completions)} requests run or wait here, {self._limits}")

    def _missing(self, request: Request) -> int:
        return len(self._completions) + request.num_completions - self._capacity

    def _gives_way(self, request: Request) -> tuple[Sequence, ...]:
        """Nobody does if that would not be enough."""
        missing = self._missing(request)
        if missing <= 0:
            return ()
        held = dict(self._completions.tenants())
        fair = _fair_shares({tenant: weight for tenant, (_, weight) in held.items()} | {request.tenant: request.weight})
        most = {tenant: fair[tenant] * self._capacity for tenant in fair}
        numbers = {tenant: number for tenant, (number, _) in held.items()}
        if numbers.get(request.tenant, 0) + request.num_completions > most[request.tenant]:
            return ()
        victims = []
        for sequence in self._newest_first(request):
            if missing <= 0:
                break
            tenant, n = sequence.request.tenant, sequence.request.num_completions
            if numbers[tenant] - n >= most[tenant]:
                victims.append(sequence)
                numbers[tenant] -= n
                missing -= n
        return tuple(victims) if missing <= 0 else ()

    def _newest_first(self, request: Request) -> Iterable[Sequence]:
        """Those of others that may give way for a request."""
        waiting = [
            each
            for each in self._completions
            if not each.has_begun
            and each.request.tenant != request.tenant
            and each.request.priority <= request.priority
        ]
        return sorted(waiting, key=lambda each: -each.order)


def _fair_shares(weights: dict[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {tenant: weight / total for tenant, weight in weights.items()}
