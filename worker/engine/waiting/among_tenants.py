"""A waiting line of many tenants: priorities first, then turns among tenants, then each tenant's own order.

Knows neither how turns are given nor how a tenant orders its own: both are objects.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from worker.engine.sequence import Sequence
from worker.engine.waiting.line import Front, Readiness
from worker.engine.waiting.turns import Turns
from worker.engine.waiting.within_tenant import AGED_EVERY, TenantQueue

_Tenants = dict[str, TenantQueue]


class TenantsLine:
    """The waiting sequences by priority and tenant.

    A low priority waits for a bounded time: one start of `AGED_EVERY` goes to the one that waits longest, if that is
    longer than `max_wait_s`.
    """

    def __init__(self, turns: Turns, make_queue: Callable[[], TenantQueue], max_wait_s: float) -> None:
        self._turns = turns
        self._make_queue = make_queue
        self._max_wait_s = max_wait_s
        self._priorities: dict[int, _Tenants] = {}  # no queue is empty
        self._num_waiting = 0
        self._starts_since_aged = 0
        self._front: dict[str, Front] | None = None  # None: somebody has come or gone since it was known

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, sequence: Sequence) -> None:
        tenants = self._priorities.setdefault(sequence.request.priority, {})
        tenant = sequence.request.tenant
        if tenant not in tenants:
            tenants[tenant] = self._make_queue()
        tenants[tenant].push(sequence)
        self._turns.arrived(sequence)
        self._num_waiting += 1
        self._front = None

    def remove(self, sequence: Sequence) -> None:
        queue = self._queue_of(sequence)
        queue.remove(sequence)
        self._turns.left(sequence)
        self._after_removal(sequence)

    def start(self, sequence: Sequence, cached_tokens: int) -> None:
        queue = self._queue_of(sequence)
        queue.remove(sequence)
        queue.started(sequence)
        self._turns.started(sequence, cached_tokens)
        lowered = sequence.request.priority < max(self._priorities)
        self._starts_since_aged = 0 if lowered else self._starts_since_aged + 1
        self._after_removal(sequence)

    def settle(self, sequence: Sequence) -> None:
        self._turns.settled(sequence)

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        for tenants in self._priorities.values():
            queue = tenants.get(sequence.request.tenant)
            if queue is not None:
                queue.published(sequence, num_tokens)

    def members(self) -> Iterator[Sequence]:
        for tenants in tuple(self._priorities.values()):
            for queue in tuple(tenants.values()):
                yield from queue.members()

    def front(self) -> Mapping[str, Front]:
        if self._front is None:
            self._front = {}
            for priority in sorted(self._priorities):
                for tenant, queue in self._priorities[priority].items():
                    self._front[tenant] = Front(priority, queue.weight, queue.num_tokens)
        return self._front

    def candidates(self, now: float, is_ready: Readiness) -> Iterator[Sequence]:
        passes = {
            priority: _Pass(self._turns, tenants, now, is_ready) for priority, tenants in self._priorities.items()
        }
        held: set[str] = set()  # who would get too far ahead of others that wait
        while passes:
            priority = self._next_priority(passes, now)
            sequence = passes[priority].next()
            if sequence is None:
                del passes[priority]
                continue
            tenant = sequence.request.tenant
            if tenant in held or not passes[priority].may_start(tenant):
                held.add(tenant)
                passes[priority].skip_tenant()
                continue
            yield sequence

    def check(self) -> None:
        queues = [queue for tenants in self._priorities.values() for queue in tenants.values()]
        assert all(queues), "a tenant without anybody waiting is remembered"
        assert sum(map(len, queues)) == self._num_waiting, "the line miscounts who waits"
        for queue in queues:
            queue.check()
        self._turns.check()

    def _next_priority(self, passes: dict[int, "_Pass"], now: float) -> int:
        highest = max(passes)
        if len(passes) == 1 or self._starts_since_aged < AGED_EVERY - 1:
            return highest
        waits = {priority: each.longest_wait_s(now) for priority, each in passes.items() if priority != highest}
        longest = max(waits, key=lambda priority: waits[priority])
        return longest if waits[longest] > max(self._max_wait_s, passes[highest].longest_wait_s(now)) else highest

    def _queue_of(self, sequence: Sequence) -> TenantQueue:
        try:
            return self._priorities[sequence.request.priority][sequence.request.tenant]
        except KeyError:
            raise KeyError(f"sequence {sequence.request.sequence_id} is not waiting") from None

    def _after_removal(self, sequence: Sequence) -> None:
        self._num_waiting -= 1
        self._front = None
        priority, tenant = sequence.request.priority, sequence.request.tenant
        tenants = self._priorities[priority]
        if not len(tenants[tenant]):
            del tenants[tenant]
            if not tenants:
                del self._priorities[priority]


class _Pass:
    """One way through the tenants of a priority, while sequences of theirs start."""

    def __init__(self, turns: Turns, tenants: _Tenants, now: float, is_ready: Readiness) -> None:
        self._turns = turns
        self._tenants = tenants
        self._now = now
        self._is_ready = is_ready
        self._orders: dict[str, Iterator[Sequence]] = {}
        self._heap = [(turns.key(tenant), tenant) for tenant in tenants]
        heapify(self._heap)
        self._last: Sequence | None = None  # handed out
        self._limit: float | None = None  # None: somebody has started since it was known

    def next(self) -> Sequence | None:
        """Return the next one that is ready; None: there is nobody left."""
        self._return_last()
        while self._heap:
            key, tenant = heappop(self._heap)
            queue = self._tenants.get(tenant)
            if queue is None:
                continue
            if (current := self._turns.key(tenant)) != key:
                heappush(self._heap, (current, tenant))
                continue
            if tenant not in self._orders:
                self._orders[tenant] = queue.ordered(self._now, self._is_ready)
            self._last = next(self._orders[tenant], None)
            if self._last is not None:
                return self._last
        return None

    def skip_tenant(self) -> None:
        """Don't hand out any more of the tenant whose sequence was handed out last."""
        self._last = None

    def may_start(self, tenant: str) -> bool:
        if self._limit is None:
            self._limit = self._turns.limit([name for name, queue in self._tenants.items() if queue.contends()])
        return self._turns.may_start(tenant, self._limit)

    def longest_wait_s(self, now: float) -> float:
        return max([queue.longest_wait_s(now) for queue in self._tenants.values()], default=0.0)

    def _return_last(self) -> None:
        """Whoever was handed out last may have started by now: its tenant's place is another one then."""
        last, self._last = self._last, None
        if last is None:
            return
        tenant = last.request.tenant
        queue = self._tenants.get(tenant)
        if queue is None or last not in queue:
            self._limit = None
        if queue is not None:
            heappush(self._heap, (self._turns.key(tenant), tenant))
