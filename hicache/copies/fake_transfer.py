"""Transfers without threads, for tests: one ends copies at once, one when the test says so, one at random by seed.

They know no tensors. What a copy moves is a function of the test's choosing (`copier.PoolCopier` moves what lies in
real pools, a dictionary of slots serves as well); without one, tickets end and nothing moves.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hicache.copies.transfer import CLOSED, Copy, Direction, Ticket

CopyContent = Callable[[Copy], None]

MOST_ROUNDS: Final = 10_000


def move_nothing(_copy: Copy) -> None:
    """For tests to which it doesn't matter what lies in a slot."""


def ignore_done() -> None:
    """For tests that look at tickets instead of being told."""


class InstantTransfer:
    """Every copy is DONE when `submit` returns, or FAILED if moving its content raised."""

    def __init__(self, copy_content: CopyContent = move_nothing, *, on_done: Callable[[], None] = ignore_done) -> None:
        self._copy_content = copy_content
        self._on_done = on_done
        self._closed = False

    def submit(self, copy: Copy) -> Ticket:
        ticket = Ticket(copy)
        if self._closed:
            ticket.fail(CLOSED)
        else:
            _finish(ticket, self._copy_content, copy)
        self._on_done()
        return ticket

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        return True


class ManualTransfer:
    """The test decides which copy ends when, and how. Content is moved when a copy ends, not before.

    A copy on which `begin` was not called has not begun: if it was cancelled, ending it in any way fails it as
    cancelled, and `close` fails it, too. One that has begun stays PENDING until the test ends it, closed or not.
    """

    def __init__(self, copy_content: CopyContent = move_nothing, *, on_done: Callable[[], None] = ignore_done) -> None:
        self._copy_content = copy_content
        self._on_done = on_done
        self._pending: list[Ticket] = []
        self._begun: list[Ticket] = []
        self._closed = False

    @property
    def pending(self) -> list[Ticket]:
        """What has not ended, in the order in which a real transfer would take it: loads first."""
        return sorted(self._pending, key=lambda ticket: ticket.copy.direction is not Direction.LOAD)

    def submit(self, copy: Copy) -> Ticket:
        ticket = Ticket(copy)
        if self._closed:
            ticket.fail(CLOSED)
            self._on_done()
        else:
            self._pending.append(ticket)
        return ticket

    def begin(self, ticket: Ticket) -> None:
        """From now on it is under way: a wish to cancel it comes too late."""
        if ticket not in self._begun and ticket.begin():
            self._begun.append(ticket)
        self._settle(ticket)

    def finish(self, ticket: Ticket) -> None:
        """Move all of its content; it is DONE."""
        self.begin(ticket)
        if ticket.pending:
            _finish(ticket, self._copy_content, ticket.copy)
            self._settle(ticket)

    def fail(self, ticket: Ticket, error: str = "the copy failed", *, torn: bool = False) -> None:
        """It is FAILED, with nothing of its content moved; `torn`: with half of it moved."""
        self.begin(ticket)
        if ticket.pending:
            if torn:
                self._copy_content(_first_half(ticket.copy))
            ticket.fail(error)
            self._settle(ticket)

    def finish_all(self) -> None:
        """End everything that is pending well, loads first."""
        for ticket in self.pending:
            self.finish(ticket)

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        for ticket in self.pending:
            if ticket not in self._begun:
                ticket.fail(CLOSED)
                self._settle(ticket)
        return not self._pending

    def _settle(self, ticket: Ticket) -> None:
        """Forget a ticket that has ended, and tell so."""
        if not ticket.pending:
            self._pending.remove(ticket)
            if ticket in self._begun:
                self._begun.remove(ticket)
            self._on_done()


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely a copy does what: all in 0..1, the first two for each round, the others for each copy."""

    begins: float = 0.6
    ends: float = 0.5
    fails: float = 0.1
    stalls: float = 0.1
    gates: float = 0.0  # of loads: one is opened when it begins, and who waits there finds all of its content
    longest_stall: int = 30  # rounds in which a stalled copy, once begun, does not end


class SeededTransfer:
    """Copies begin and end at random, in any order, some failing and some stalling for long; the seed decides.

    Nothing happens but in `advance`. The first half of a copy's content is moved when it begins, the second when it
    ends: whoever gives its slots to others in between finds a mixture. One that fails stays torn.
    """

    def __init__(
        self,
        seed: int,
        copy_content: CopyContent = move_nothing,
        *,
        chances: Chances | None = None,
        on_done: Callable[[], None] = ignore_done,
    ) -> None:
        self._random = random.Random(seed)
        self._copy_content = copy_content
        self._chances = chances or Chances()
        self._on_done = on_done
        self._waiting: list[Ticket] = []
        self._moved: set[Ticket] = set()  # under way with all of their content moved
        self._under_way: dict[Ticket, int] = {}  # rounds to go before it may end
        self._closed = False

    @property
    def pending(self) -> list[Ticket]:
        return [*self._under_way, *self._waiting]

    def submit(self, copy: Copy) -> Ticket:
        ticket = Ticket(copy)
        if self._closed:
            ticket.fail(CLOSED)
            self._on_done()
        else:
            self._waiting.append(ticket)
        return ticket

    def advance(self) -> None:
        """Let one round pass."""
        self._end_some()
        self._begin_some()

    def drain(self) -> None:
        """Let rounds pass until nothing is pending."""
        for _ in range(MOST_ROUNDS):
            if not self.pending:
                return
            self.advance()
        raise AssertionError(f"copies are pending after {MOST_ROUNDS} rounds; the chances must not be 0")

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.fail(CLOSED)
            self._on_done()
        return not self._under_way

    def _begin_some(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._random.shuffle(waiting)
        for ticket in waiting:
            if not self._occurs(self._chances.begins):
                self._waiting.append(ticket)
            else:
                self._begin(ticket)

    def _begin(self, ticket: Ticket) -> None:
        if ticket.begin() and _move(ticket, self._copy_content, _first_half(ticket.copy)):
            stalls = self._occurs(self._chances.stalls)
            self._under_way[ticket] = self._random.randint(1, self._chances.longest_stall) if stalls else 0
            if ticket.copy.direction is Direction.LOAD and self._chances.gates and self._occurs(self._chances.gates):
                ticket.open(_SeededGate(self._move_rest, ticket))
        else:
            self._on_done()

    def _end_some(self) -> None:
        under_way = list(self._under_way)
        self._random.shuffle(under_way)
        for ticket in under_way:
            if self._under_way[ticket]:
                self._under_way[ticket] -= 1
            elif self._occurs(self._chances.ends):
                del self._under_way[ticket]
                if self._occurs(self._chances.fails):
                    ticket.fail("a copy failed, as some do")
                else:
                    self._move_rest(ticket)
                    if ticket.pending:
                        ticket.finish(0.0)
                self._moved.discard(ticket)
                self._on_done()

    def _move_rest(self, ticket: Ticket) -> None:
        if ticket.pending and ticket not in self._moved:
            self._moved.add(ticket)
            _move(ticket, self._copy_content, _second_half(ticket.copy))

    def _occurs(self, chance: float) -> bool:
        return self._random.random() < chance


class _SeededGate:
    def __init__(self, arrive: Callable[[Ticket], None], ticket: Ticket) -> None:
        self._arrive = arrive
        self._ticket = ticket

    def wait(self, layer: int) -> None:
        self._arrive(self._ticket)


def _finish(ticket: Ticket, copy_content: CopyContent, copy: Copy) -> None:
    """Move `copy`, what is left of the ticket's; it is DONE, or FAILED if that raised."""
    if _move(ticket, copy_content, copy):
        ticket.finish(0.0)


def _move(ticket: Ticket, copy_content: CopyContent, copy: Copy) -> bool:
    try:
        copy_content(copy)
    except Exception as error:  # noqa: BLE001 - a copy that goes wrong ends in its ticket
        ticket.fail(f"{type(error).__name__}: {error}")
    return ticket.pending


def _first_half(copy: Copy) -> Copy:
    half = len(copy) // 2
    return Copy(copy.direction, copy.device_slots[:half], copy.host_slots[:half])


def _second_half(copy: Copy) -> Copy:
    half = len(copy) // 2
    return Copy(copy.direction, copy.device_slots[half:], copy.host_slots[half:])
