"""Whatever changes, however slowly a gateway reads, and whenever it asks: what it believes to be there is there.

Beside the outbox runs a plain list of all that ever happened; a snapshot is what that list comes to.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hicache.events import CacheDigest, CacheEvent, EventKind, Holding, Snapshot, Tally
from hicache.keys import Namespace
from radixgate.v1 import worker_pb2
from tests.fakes.cache_reader import CacheReader
from worker.rpc.cache_messages import digest_message, event_message, snapshot_messages
from worker.rpc.cache_outbox import CacheOutbox

NAMESPACES = tuple(Namespace(bytes([number]) * 16, "r" * number) for number in range(3))
MAX_EVENTS, MAX_NAMES = 6, 20
NAME = 16
MAX_PART_BYTES = 300


class Counts:
    def __init__(self) -> None:
        self.sent = self.drops = self.snapshots = 0

    def cache_events_sent(self, number: int) -> None:
        self.sent += number

    def cache_events_dropped(self, number: int) -> None:
        assert number >= 0
        self.drops += 1

    def cache_snapshot_sent(self) -> None:
        self.snapshots += 1


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.outbox = CacheOutbox(self.counts, max_events=MAX_EVENTS, max_name_bytes=MAX_NAMES * NAME)
        self.held: Counter[tuple[str, Namespace, bytes]] = Counter()
        self.seq = 0
        self.reader = CacheReader()
        self.outbox.changed([], digest_message(CacheDigest()))

    def happen(self, kind: EventKind, tier: str, namespace: Namespace, numbers: list[int]) -> CacheEvent | None:
        """Something happens, if it can."""
        names = [number.to_bytes(NAME, "little") for number in numbers]
        left = "device" if kind is EventKind.MOVED else tier
        pages = Counter((left, namespace, name) for name in names)
        if kind is EventKind.STORED:
            if tier != "storage":
                self.held += pages
        elif pages <= self.held and left != "storage":
            self.held -= pages
        else:
            return None
        self.seq += 1
        where = "host" if kind is EventKind.MOVED else tier
        return CacheEvent(self.seq, kind, where, namespace, b"".join(names))  # type: ignore[arg-type]

    def digest(self) -> CacheDigest:
        tallies = {"device": Tally(), "host": Tally()}
        for (tier, _, name), count in self.held.items():
            tallies[tier].add(name * count)
        return CacheDigest(self.seq, tallies["device"].digest(), tallies["host"].digest())

    def snapshot(self) -> Snapshot:
        holdings = [
            Holding(tier, namespace, name * count)  # type: ignore[arg-type]
            for (tier, namespace, name), count in self.held.items()
        ]
        return Snapshot(self.seq, tuple(holdings))

    @rule(
        changes=st.lists(
            st.tuples(
                st.sampled_from([EventKind.STORED, EventKind.STORED, EventKind.REMOVED, EventKind.MOVED]),
                st.sampled_from(["device", "host", "storage"]),
                st.sampled_from(NAMESPACES),
                st.lists(st.integers(0, 2**128 - 1) | st.integers(0, 3), min_size=1, max_size=9),
            ),
            min_size=1,
            max_size=9,
        )
    )
    def a_step_changes_the_cache(self, changes: list[tuple[EventKind, str, Namespace, list[int]]]) -> None:
        events = [event for event in (self.happen(*change) for change in changes) if event is not None]
        if events:
            self.outbox.changed([event_message(event) for event in events], digest_message(self.digest()))

    @rule()
    def the_gateway_asks(self) -> None:
        self.outbox.restart(snapshot_messages(self.snapshot(), MAX_PART_BYTES))

    @rule(number=st.integers(1, 4), reports=st.booleans())
    def the_gateway_reads(self, number: int, reports: bool) -> None:
        for _ in range(number):
            self.read(reports)

    def read(self, reports: bool) -> None:
        message = worker_pb2.ConnectResponse()
        self.outbox.fill(message)
        if reports:
            self.outbox.fill_digest(message)
        self.reader.read(message)

    @invariant()
    def what_waits_is_bounded(self) -> None:
        assert len(self.outbox._events) <= MAX_EVENTS
        assert sum(len(event.names) for event in self.outbox._events) <= MAX_NAMES * NAME

    @invariant()
    def a_gateway_that_has_read_all_and_is_not_lost_holds_what_is_there(self) -> None:
        if not self.outbox.waits and not self.reader.is_lost and self.reader.seq == self.seq:
            assert self.reader.digest == digest_message(self.digest())

    def teardown(self) -> None:
        """In the end it knows whether it is lost, which it is only if something was left out, and a snapshot is all it
        needs; the digest that proves it comes along.
        """
        self.drain()
        assert self.reader.seq == self.seq, "it was told of the last event, or of its number"
        assert self.reader.gaps <= self.counts.drops
        if not self.reader.is_lost:
            assert self.reader.digest == digest_message(self.digest())
        num_digests = len(self.reader.digests)
        self.the_gateway_asks()
        self.drain()
        assert not self.reader.is_lost
        assert self.reader.digests[num_digests:] == [digest_message(self.digest())]
        assert self.counts.snapshots == self.reader.snapshots
        assert self.counts.sent == self.reader.num_events

    def drain(self) -> None:
        while self.outbox.waits:
            self.read(reports=True)
        self.read(reports=True)


def test_a_gateway_believes_what_is_there_or_knows_that_it_is_lost() -> None:
    run_state_machine_as_test(OutboxMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
