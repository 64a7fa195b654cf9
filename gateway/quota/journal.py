"""Writes what this gateway settles to Redis, exactly once, in the background, and says that the gateway lives.

Changes are added up in a ledger and taken from it in numbered batches. Redis applies a batch only if it follows the
last one that it has of this gateway, so sending one twice counts once. Batches stay for a while after they were
acknowledged: if Redis comes back in an older state they are sent again from there.

One task does all of it, one call after the other: no renewal of a lease overtakes its end.

    current ──a call fails──▶ behind ──all is written, and was for a while──▶ closing ──and the rest──▶ current

While it is behind, Redis does not know what was admitted here, and must not decide. In `closing`, which lasts one call,
nobody is admitted, so that the last of it gets written.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from gateway.errors import UnavailableError
from gateway.quota.admissions import Charge, RecentAdmissions
from gateway.quota.ledger import Changes, Counts, Ledger
from gateway.quota.shared import Applied, Holdings, Renewed
from gateway.quota.windows import WINDOW_S

_log = structlog.get_logger(__name__)

# For how long what Redis has acknowledged is kept: its file lags at most two seconds behind (`appendfsync everysec`).
_KEPT_S = 10.0
_RETRY_S = 0.1
# What ends within this time of the first shares its batch.
_LINGER_S = 0.002
# After an outage gateways go on alone for this long, so that all of them have written what they admitted meanwhile.
_GRACE_S = 1.0


class Store(Protocol):
    """Raises UnavailableError."""

    async def apply(self, number: int, changes: Changes, *, whatever_was_before: bool) -> Applied: ...

    async def renew(self, holdings: Sequence[Holdings]) -> Renewed: ...

    async def sign_off(self) -> None: ...


class JournalObserver(Protocol):
    def quota_backlog(self, settlements: int) -> None: ...

    def quota_store_current(self, current: bool) -> None: ...


class State(Enum):
    CURRENT = "current"
    BEHIND = "behind"
    CLOSING = "closing"


class StoreClock:
    """The store's time, from this gateway's: never early, and late by no more than a call takes."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()  # a guess, until the store has told

    def learn(self, store_time: float, asked_at: float) -> None:
        self._ahead_s = store_time - asked_at

    def second(self, now: float) -> int:
        return int(now + self._ahead_s)


@dataclass(slots=True)
class _Batch:
    number: int
    changes: Changes
    acknowledged_at: float | None = None


class Journal:
    """Belongs to the event loop. Invariant: batches are numbered without gaps, and the last ones are all kept."""

    def __init__(
        self,
        store: Store,
        holdings: Callable[[], Sequence[Holdings]],
        lease_s: float,
        observer: JournalObserver,
        on_freed: Callable[[str], None],
    ) -> None:
        """`on_freed` is told each tenant of whom Redis knows now that places are free."""
        self.ledger = Ledger()
        self.clock = StoreClock()
        self.gateways = 1  # that live, as far as is known
        self._store = store
        self._holdings = holdings
        self._renew_s = lease_s / 3
        self._observer = observer
        self._on_freed = on_freed
        self._admissions = RecentAdmissions(_KEPT_S)
        self._lost: list[Charge] = []  # admissions that Redis has to be told again
        self._batches: deque[_Batch] = deque()
        self._newest = 0
        self._unsent = 0  # settlements in batches that are not acknowledged
        self._acknowledged = 0
        self._state = State.CURRENT
        self._open = asyncio.Event()  # not set only while closing
        self._open.set()
        self._current_from = 0.0  # while behind: no earlier than this
        self._wake = asyncio.Event()
        self._renew_at = 0.0

    # ------------------------------------------------------------------------------------------- what others tell it

    @property
    def current(self) -> bool:
        """Whether Redis answers and knows all that was admitted here."""
        return self._state is State.CURRENT

    async def settled_state(self) -> None:
        """Wait while it is being found out whether Redis decides again."""
        await self._open.wait()

    def lost(self) -> None:
        """A call to Redis has failed."""
        self._current_from = time.monotonic() + _GRACE_S
        if self._state is State.CURRENT:
            _log.warning("quotas are kept by this gateway alone", gateways=self.gateways)
            self._observer.quota_store_current(False)
        self._state = State.BEHIND
        self._renew_at = 0.0
        self._open.set()
        self._wake.set()

    def write_soon(self) -> None:
        """There is something in the ledger."""
        self._observer.quota_backlog(self._backlog())
        self._wake.set()

    def admitted(self, number: int, charge: Charge) -> None:
        """Redis has admitted a call, the `number`th of this gateway."""
        lost = self._admissions.record(number, charge, time.monotonic())
        if lost is not None:
            self._found_lost([lost])

    # --------------------------------------------------------------------------------------------------- its own task

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            await self._run()
        finally:
            self._open.set()  # nobody waits for what will not be found out any more

    async def _run(self) -> None:
        while True:
            await self._until_due()
            try:
                await self._work()
            except UnavailableError:
                self.lost()
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - without it no limit and no usage would be kept any more
                _log.error("journal failed", error=type(error).__name__, detail=str(error)[:200])
                self.lost()
                await asyncio.sleep(_RETRY_S)

    async def close(self, timeout_s: float) -> None:
        """Write what there is, once `run` has ended; what cannot be written in time is logged and lost."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._finish()
        except TimeoutError:
            pass
        if unwritten := self._unwritten():
            total = sum((sum(each.usage.values(), Counts()) for each in unwritten), Counts())
            _log.error(
                "usage was lost: Redis did not take it before the end",
                requests=total.requests,
                prompt_tokens=total.prompt_tokens,
                completion_tokens=total.completion_tokens,
                by_tenant=_by_tenant(unwritten),
            )

    async def _finish(self) -> None:
        while True:
            try:
                await self._write()
                await self._store.sign_off()
            except UnavailableError:
                if self._acknowledged == self._newest:
                    return  # what is left to say, that this gateway is gone, its lease says a little later
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _until_due(self) -> None:
        wait_s = self._renew_at - time.monotonic() if self.current else _RETRY_S
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
        await asyncio.sleep(_LINGER_S)

    async def _work(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at:
            await self._renew()
        await self._write()
        self._admissions.forget(now)
        if self._state is State.BEHIND and time.monotonic() >= self._current_from:
            self._state = State.CLOSING
            self._open.clear()
            await self._write()
            # A call that failed meanwhile has changed the state.
            if self._state is State.CLOSING:
                self._state = State.CURRENT
                self._open.set()
                _log.info("quotas are kept over all gateways again", gateways=self.gateways)
                self._observer.quota_store_current(True)

    async def _renew(self) -> None:
        asked_at, mark = time.monotonic(), self._admissions.mark()
        holdings = self._holdings()
        self.ledger.held_are_told()
        renewed = await self._store.renew(holdings)
        self._renew_at = asked_at + self._renew_s
        self.gateways = max(1, renewed.gateways)
        self.clock.learn(renewed.now, asked_at)
        self._found_lost(self._admissions.lost(renewed.admissions, mark))
        self._back_to(renewed.last)

    async def _write(self) -> None:
        """Send all batches that Redis has not got."""
        if self.ledger or self._lost:
            self.ledger.forget_before(self.clock.second(time.monotonic()) - WINDOW_S)
            self._newest += 1
            self._unsent += self.ledger.settlements
            self._batches.append(_Batch(self._newest, self.ledger.take()))
        forced = False
        while self._acknowledged < self._newest:
            batch = self._batches[self._acknowledged + 1 - self._batches[0].number]
            applied = await self._send(batch, forced)
            forced = not applied.holds and self._back_to(applied.last)
            if applied.holds:
                self._acknowledge(batch, applied)
        self._forget_batches()
        self._observer.quota_backlog(self._backlog())

    async def _send(self, batch: _Batch, forced: bool) -> Applied:
        """Send one batch, and with the first that Redis takes what it has lost: it may have been given back since."""
        mark, lost = self._admissions.mark(), self._lost
        changes, self._lost = batch.changes.after(lost), []
        try:
            applied = await self._store.apply(batch.number, changes, whatever_was_before=forced)
        except UnavailableError:
            batch.changes = changes  # it may be in, with all of this
            raise
        if not applied.holds:
            self._lost = [*lost, *self._lost]
            self._renew_at = 0.0  # then it has forgotten places as well
        self._found_lost(self._admissions.lost(applied.admissions, mark))
        return applied

    def _acknowledge(self, batch: _Batch, applied: Applied) -> None:
        if applied.failures:
            _log.error("redis refused changes of quotas or usage", changes=applied.failures)
        self._acknowledged = batch.number
        self._unsent -= batch.changes.settlements
        batch.acknowledged_at = time.monotonic()
        for tenant in batch.changes.freed:
            self._on_freed(tenant)

    def _back_to(self, last: int) -> bool:
        """Redis has batches up to `last`. Return whether it has lost more than is kept here."""
        if last >= self._acknowledged:
            return False
        oldest = self._batches[0].number if self._batches else self._acknowledged + 1
        again = [each for each in self._batches if last < each.number <= self._acknowledged]
        if again:
            _log.warning("redis came back in an older state", batches_again=len(again))
            self._unsent += sum(each.changes.settlements for each in again)
        self._acknowledged -= len(again)
        return last < oldest - 1

    def _forget_batches(self) -> None:
        """Drop what was acknowledged long ago."""
        before = time.monotonic() - _KEPT_S
        while self._batches and self._batches[0].number <= self._acknowledged:
            if (self._batches[0].acknowledged_at or 0.0) >= before:
                return
            self._batches.popleft()

    def _found_lost(self, charges: Sequence[Charge]) -> None:
        if charges:
            _log.warning("redis has lost admissions, which are charged again", admissions=len(charges))
            self._lost += charges
            self._wake.set()

    def _unwritten(self) -> list[Changes]:
        unsent = [batch.changes for batch in self._batches if batch.number > self._acknowledged]
        rest = self.ledger.take()
        return [each for each in (*unsent, rest) if each.usage]

    def _backlog(self) -> int:
        """Settlements that Redis does not know."""
        return self._unsent + self.ledger.settlements


def _by_tenant(unwritten: Sequence[Changes]) -> dict[str, int]:
    """Tokens, of at most so many tenants as a line of a log can bear."""
    tokens: dict[str, int] = {}
    for changes in unwritten:
        for use, counts in changes.usage.items():
            tokens[use.tenant] = tokens.get(use.tenant, 0) + counts.prompt_tokens + counts.completion_tokens
    return dict(sorted(tokens.items(), key=lambda each: -each[1])[:50])
