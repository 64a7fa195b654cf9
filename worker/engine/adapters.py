"""Which LoRA adapter lies at which place of the device, who uses it, and how one goes.

Decides; moves no weights, and knows adapters by their revision only. Time is passed in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from worker.engine.sequence import Sequence


class AdapterTicket(Protocol):
    """An adapter on its way to a place. Once `done` it stays so; then `failed` says how it went."""

    @property
    def done(self) -> bool: ...

    @property
    def failed(self) -> bool: ...


class AdapterSource(Protocol):
    """Brings adapters to numbered places on the device, beside the engine. The engine owns this port."""

    @property
    def num_places(self) -> int: ...

    def load(self, revision: str, place: int) -> AdapterTicket:
        """Begin to bring an adapter to `place`, in place of what is there; return at once."""
        ...

    def forget(self, revision: str, place: int | None) -> None:
        """Nobody will ask for the adapter again; it lies at `place`, if anywhere. Returns at once."""
        ...


class NoAdapters:
    """The source of an engine that has no place for adapters."""

    num_places = 0

    def load(self, revision: str, place: int) -> AdapterTicket:
        raise AssertionError("there is no place for adapters")

    def forget(self, revision: str, place: int | None) -> None:
        return


@dataclass(frozen=True, slots=True)
class AdapterState:
    revision: str
    resident: bool  # it lies where it can compute
    users: int  # sequences that run or wait with it


@dataclass(slots=True, eq=False)
class _Place:
    number: int
    revision: str = ""
    ticket: AdapterTicket | None = None  # None: nothing is on its way here
    users: set[Sequence] = field(default_factory=set)  # that run with it
    used_at: float = 0.0  # when one last started, or it was last given away
    fresh: bool = False  # none of those it was brought for has started yet
    promised_at: float | None = None  # when somebody was last told to be ready to start
    missed_since: float | None = None  # when another adapter could have had the place, were it not kept for these
    closing_since: float | None = None  # nobody starts with it any more, because another adapter waits for a place


@dataclass(slots=True)
class _Turns:
    """The times that a sequence has started with its adapter."""

    most_computed: int  # tokens that it had by then
    in_vain: int = 0  # starts in a row with no more than that: what it had done since was evicted


@dataclass(slots=True)
class _Adapter:
    alive: int = 0  # sequences that wait or run with it
    retiring: bool = False
    failed: bool = False  # the last time it was brought here
    asked_at: float | None = None  # when a place for it was last looked for: once a step is enough


class AdapterPlaces:
    """The places of the device, and who gets them.

    An adapter stays where it is until its place is needed: the least recently used one goes, one for which nobody waits
    before others. A place that sequences run on isn't given away. Where all are taken, the one whose last start is
    longest ago closes: those that run finish, nobody else starts, so whoever waits gets a place however busy the
    others are. If that takes longer than `patience_s`, those that run are paused, and wait for a place in their turn.
    Should slots be so scarce that what one has computed is gone by its next turn, that turn is twice as long.
    Nobody loses a place between being told to be ready and starting. Who never starts, for want of slots, keeps it, and
    what was brought for it, from others for `patience_s` at most.

    Invariant: a place has as many users as sequences run with its adapter; an adapter lies at one place at most.
    """

    def __init__(self, source: AdapterSource, patience_s: float) -> None:
        self._source = source
        self._patience_s = patience_s
        self._adapters: dict[str, _Adapter] = {}
        self._places = [_Place(number) for number in range(source.num_places)]
        self._at: dict[str, _Place] = {}  # by revision
        self._wanted: dict[str, float] = {}  # by revision, longest first: who waits for a place, and since when
        self._turns: dict[Sequence, _Turns] = {}  # of those alive that have started

    # Which adapters there are

    def add(self, revision: str) -> None:
        """From now on sequences may name the adapter. Adding it again changes nothing; not while it is retiring."""
        adapter = self._adapters.setdefault(revision, _Adapter())
        assert not adapter.retiring, f"adapter {revision} is being taken away"

    def knows(self, revision: str) -> bool:
        """Whether new sequences may name the adapter; everybody may name none."""
        adapter = self._adapters.get(revision)
        return not revision or (adapter is not None and not adapter.retiring)

    def retire(self, revision: str) -> None:
        """No new sequence may name the adapter, those that do go on."""
        self._adapters[revision].retiring = True

    def remove(self, revision: str) -> None:
        """Forget a retired adapter that nobody names any more."""
        assert self.num_alive(revision) == 0, f"adapter {revision} is in use"
        del self._adapters[revision]
        place = self._at.pop(revision, None)
        self._want_no_more(revision)
        self._source.forget(revision, None if place is None else place.number)
        if place is not None:
            place.revision, place.ticket, place.closing_since = "", None, None

    def states(self) -> tuple[AdapterState, ...]:
        return tuple(
            [
                AdapterState(revision, self.is_resident(revision), adapter.alive)
                for revision, adapter in tuple(self._adapters.items())
            ]
        )

    def num_alive(self, revision: str) -> int:
        """How many sequences wait or run with the adapter."""
        adapter = self._adapters.get(revision)
        return 0 if adapter is None else adapter.alive

    def is_resident(self, revision: str) -> bool:
        place = self._at.get(revision)
        return place is not None and place.ticket is None

    # Sequences

    def joined(self, sequence: Sequence) -> None:
        """A sequence that names a known adapter, or none, is alive from now on."""
        if revision := sequence.request.adapter_revision:
            self._adapters[revision].alive += 1

    def left(self, sequence: Sequence) -> None:
        """It has ended, and runs no more."""
        if revision := sequence.request.adapter_revision:
            self._turns.pop(sequence, None)
            adapter = self._adapters[revision]
            adapter.alive -= 1
            if adapter.alive == 0:
                self._want_no_more(revision)

    def is_ready(self, sequence: Sequence, now: float) -> bool:
        """Whether a waiting sequence may start as far as its adapter goes. If not, that is on its way, or waits.

        It may `take` its place as long as the time is `now`, whoever else is asked for meanwhile.
        """
        revision = sequence.request.adapter_revision
        if not revision:
            return True
        if revision not in self._at:
            adapter = self._adapters[revision]
            if adapter.failed or adapter.asked_at == now:
                return False  # with `failed` it is about to end
            adapter.asked_at = now
            self._wanted.setdefault(revision, now)
            self._bring(revision, now)
        place = self._at.get(revision)
        # Looked at first: a load that has failed by now leaves the place empty.
        if place is None or self._is_on_its_way(place) or place.revision != revision:
            return False
        if place.closing_since is not None:
            return False
        place.promised_at = now
        return True

    def take(self, sequence: Sequence, now: float) -> None:
        """A sequence that is ready starts."""
        if revision := sequence.request.adapter_revision:
            place = self._at[revision]
            place.users.add(sequence)
            place.used_at, place.fresh, place.missed_since = now, False, None
            sequence.adapter_place = place.number
            self._begin_turn(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """A sequence that ran stops, for now or for ever."""
        if revision := sequence.request.adapter_revision:
            self._at[revision].users.remove(sequence)
            sequence.adapter_place = None

    def overdue(self, now: float) -> frozenset[str]:
        """Return the adapters whose sequences should be paused, because others have waited for long enough."""
        return frozenset(
            place.revision
            for place in self._places
            if place.users and place.closing_since is not None and now - place.closing_since >= self._turn_s(place)
        )

    def failed(self) -> Iterator[str]:
        """Yield adapters that could not be brought to the device, once each time; whoever waits for them should end."""
        for place in self._places:
            self._is_on_its_way(place)
        for revision, adapter in self._adapters.items():
            if adapter.failed:
                adapter.failed = False
                yield revision

    def check(self, running: list[Sequence]) -> None:
        """Verify the invariants; raises AssertionError."""
        for place in self._places:
            users = {each for each in running if each.adapter_place == place.number}
            assert users == place.users, f"place {place.number} has {len(place.users)} users, {len(users)} run"
            assert all(each.request.adapter_revision == place.revision for each in users), "a user of another adapter"
            assert not place.users or place.ticket is None, "sequences run on an adapter that is on its way"
            assert not place.revision or self._at.get(place.revision) is place, "an adapter lies elsewhere"
        assert all(self._adapters[revision].alive for revision in self._wanted), "nobody waits for what is wanted"

    # Places

    def _begin_turn(self, sequence: Sequence) -> None:
        turns = self._turns.get(sequence)
        if turns is None:
            self._turns[sequence] = _Turns(sequence.num_computed)
        elif sequence.num_computed > turns.most_computed:
            turns.most_computed, turns.in_vain = sequence.num_computed, 0
        else:
            turns.in_vain += 1

    def _turn_s(self, place: _Place) -> float:
        """How long its users may go on while others wait for the place."""
        return self._patience_s * 2.0 ** max(self._turns[user].in_vain for user in place.users)

    def _bring(self, revision: str, now: float) -> None:
        """Begin to bring an adapter here, if there is a place for it; else let one become free."""
        first = list(islice(self._wanted, len(self._places)))
        if revision not in first:
            return  # all places are for those that wait for longer
        free = sorted((place for place in self._places if self._is_free(place, now)), key=self._regret)
        rank = first.index(revision)
        if rank < len(free):
            self._load(revision, free[rank], now)
            return
        closing = sum(place.closing_since is not None for place in self._places)
        if rank - len(free) >= closing:
            open_places = [place for place in self._places if place.users and place.closing_since is None]
            if open_places:
                min(open_places, key=lambda place: (place.used_at, place.number)).closing_since = now

    def _is_free(self, place: _Place, now: float) -> bool:
        if place.users or self._is_on_its_way(place):
            return False
        promised = place.promised_at == now
        if not promised and (not place.fresh or place.closing_since is not None or not self.num_alive(place.revision)):
            return True
        if place.missed_since is None:
            place.missed_since = now
        if now - place.missed_since < self._patience_s:
            return False
        if promised and place.closing_since is None:
            place.closing_since = now  # whoever does not start now has waited for slots for long enough
        return not promised

    def _regret(self, place: _Place) -> tuple[bool, float, int]:
        """How much it would be missed: smaller goes first."""
        closes = place.closing_since is not None
        return (not closes and self.num_alive(place.revision) > 0, place.used_at, place.number)

    def _load(self, revision: str, place: _Place, now: float) -> None:
        if place.revision:
            del self._at[place.revision]
        place.revision, place.closing_since = revision, None
        place.used_at, place.fresh, place.promised_at, place.missed_since = now, True, None, None
        self._want_no_more(revision)
        self._at[revision] = place
        place.ticket = self._source.load(revision, place.number)

    def _want_no_more(self, revision: str) -> None:
        """An adapter has its place, or is needed by nobody: no more places close than others wait for."""
        self._wanted.pop(revision, None)
        closing = [place for place in self._places if place.closing_since is not None]
        for place in sorted(closing, key=lambda each: each.closing_since or 0.0)[len(self._wanted) :]:
            place.closing_since = None

    def _is_on_its_way(self, place: _Place) -> bool:
        ticket = place.ticket
        if ticket is None:
            return False
        if not ticket.done:
            return True
        place.ticket = None
        if ticket.failed:
            self._adapters[place.revision].failed = True
            del self._at[place.revision]
            place.revision = ""
        return False
