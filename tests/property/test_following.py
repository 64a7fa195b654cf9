"""Readers of one cache's events over links that lose, repeat and delay, beside the cache itself."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.cache_messages import digest_of, events_of, holdings_of
from gateway.observer import NullObserver
from gateway.routing.following import ANSWER_S, CacheEvent, Following
from gateway.routing.index import DEVICE, HOST, PageIndex
from hicache.cache import PrefixCache
from hicache.events import EventLog, Snapshot
from hicache.radix.naming import PageNames
from radixgate.v1 import worker_pb2
from tests.unit.hicache.support import key, namespace, serve
from worker.rpc.cache_messages import digest_message, event_message, snapshot_messages

PROMPTS = ([1] * 8, [1] * 4 + [2] * 8, [2] * 12, [1] * 8 + [3] * 8, [3] * 16)

# What a worker does, and what becomes of what it says.
serves = st.tuples(st.just("serve"), st.sampled_from(PROMPTS), st.sampled_from("ab"))
drops = st.tuples(st.just("drop"), st.just([1]), st.sampled_from("ab"))
fates = st.sampled_from(["arrives", "arrives", "arrives", "lost", "twice"])
actions = st.lists(st.one_of(serves, serves, drops, st.just("answer"), st.just("part")), max_size=30)


class Worker:
    """A real cache, small enough to evict, that tells."""

    def __init__(self) -> None:
        self.told: list[worker_pb2.CacheEvent] = []
        self.log = EventLog(PageNames(4, b"seed"), on_event=lambda event: self.told.append(event_message(event)))
        self.cache = PrefixCache(40, page_size=4, events=self.log)
        self.now = 0.0

    def do(self, action: tuple[str, list[int], str]) -> None:
        kind, token_ids, name = action
        self.now += 1.0
        if kind == "serve":
            serve(self.cache, key(token_ids, name), self.now)
        else:
            self.cache.drop(namespace(name))

    def snapshot(self) -> Snapshot:
        snapshot = self.cache.snapshot()
        assert snapshot is not None
        return snapshot


class Counting(NullObserver):
    def __init__(self) -> None:
        self.gaps = self.snapshots = self.agreed = self.differed = self.applied = 0

    def cache_events_missed(self, worker: str) -> None:
        self.gaps += 1

    def cache_snapshot_taken(self, worker: str) -> None:
        self.snapshots += 1

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        self.agreed += agrees
        self.differed += not agrees

    def cache_events_applied(self, worker: str, events: int) -> None:
        self.applied += events


@dataclass
class Reader:
    """A gateway's end of a link, and what is on its way there."""

    worker: Worker
    index: PageIndex = field(default_factory=lambda: PageIndex(1000))
    observer: Counting = field(default_factory=Counting)
    now: float = 0.0
    parts: list[worker_pb2.CacheSnapshot] = field(default_factory=list)
    asked: bool = False

    def __post_init__(self) -> None:
        self.holder = self.index.join()
        self.following = Following("worker", self.holder, None, self.observer)

    def hear(self, events: list[worker_pb2.CacheEvent]) -> None:
        self.following.events(events_of(worker_pb2.ConnectResponse(cache_events=events)))

    def hear_digest(self) -> None:
        self.following.compare(digest_of(digest_message(self.worker.log.digest())))

    def ask(self) -> None:
        self.now += 1.0
        if self.following.wants_snapshot(self.now):
            self.asked = True

    def answer(self) -> None:
        """The worker makes the snapshot now; its parts are on their way."""
        if self.asked and not self.parts:
            self.asked = False
            self.parts = snapshot_messages(self.worker.snapshot(), max_part_bytes=128)

    def take_part(self) -> None:
        if self.parts:
            part = self.parts.pop(0)
            self.following.snapshot(part.seq, part.part, part.last, holdings_of(part), self.now)

    def settle(self) -> None:
        """Nothing is lost any more: digests come, and what is asked for is answered."""
        for _ in range(4):
            while self.parts:
                self.take_part()
            self.hear_digest()
            self.now += 10.0
            self.ask()
            self.answer()

    def check(self) -> None:
        snapshot = self.worker.snapshot()
        for place, tier in ((DEVICE, "device"), (HOST, "host")):
            held = Counter(name for each in snapshot.holdings if each.tier == tier for name in each.names)
            assert dict(held) == self.holder._counts[place]
        self.index.check()
        assert digest_message(self.worker.log.digest()) == digest_message_of(self.following)


def digest_message_of(following: Following) -> worker_pb2.CacheDigest:
    digest = following.digest
    device, host = (
        worker_pb2.TierDigest(num_pages=tier.num_pages, sum=tier.total.to_bytes(16, "little"))
        for tier in (digest.device, digest.host)
    )
    return worker_pb2.CacheDigest(seq=digest.seq, device=device, host=host)


def hear_with(fate: str, reader: Reader, event: worker_pb2.CacheEvent) -> None:
    if fate != "lost":
        reader.hear([event])
    if fate == "twice":
        reader.hear([event])


@settings(max_examples=100)
@given(actions, st.data(), st.integers(0, 3))
def test_whatever_is_lost_or_repeated_readers_end_up_with_what_the_cache_holds(
    steps: list[object], data: st.DataObject, silent: int
) -> None:
    worker = Worker()
    for _ in range(silent):  # before anybody listens
        worker.do(("serve", PROMPTS[0], "a"))
    worker.told.clear()
    readers = [Reader(worker), Reader(worker)]
    readers[0].hear_digest()  # the other begins with whatever comes
    for step in steps:
        for reader in readers:
            if step == "answer":
                reader.answer()
            elif step == "part":
                reader.take_part()
        if isinstance(step, tuple):
            worker.do(step)
            for event in worker.told:
                for reader in readers:
                    hear_with(data.draw(fates), reader, event)
            worker.told.clear()
        for reader in readers:
            reader.ask()
    for reader in readers:
        reader.settle()
        reader.check()


@given(st.lists(st.one_of(serves, drops), max_size=20))
def test_where_nothing_is_lost_every_digest_agrees_and_nothing_is_asked_for(
    steps: list[tuple[str, list[int], str]],
) -> None:
    worker = Worker()
    reader = Reader(worker)
    reader.hear_digest()
    for step in steps:
        worker.do(step)
        reader.hear(worker.told)
        worker.told.clear()
        reader.hear_digest()
        reader.ask()
        assert not reader.asked
        assert reader.following.in_step
        reader.check()
    assert (reader.observer.gaps, reader.observer.differed) == (0, 0)
    assert reader.observer.applied == worker.log.seq


@given(st.lists(serves, min_size=1, max_size=20), st.data())
def test_a_change_that_was_told_wrongly_is_found_by_the_next_digest(
    steps: list[tuple[str, list[int], str]], data: st.DataObject
) -> None:
    worker = Worker()
    reader = Reader(worker)
    for step in steps:
        worker.do(step)
    wrong = data.draw(st.integers(0, len(worker.told) - 1))
    worker.told[wrong].names = bytes(16) + worker.told[wrong].names[16:]
    reader.hear(worker.told)
    reader.hear_digest()
    assert reader.observer.differed == 1
    reader.settle()
    reader.check()


@given(st.lists(st.one_of(serves, drops), max_size=20), st.integers(1, 4))
def test_the_digest_proves_the_stream_also_where_the_index_has_no_room(
    steps: list[tuple[str, list[int], str]], max_pages: int
) -> None:
    worker = Worker()
    reader = Reader(worker, PageIndex(max_pages))
    for step in steps:
        worker.do(step)
        reader.hear(worker.told)
        worker.told.clear()
        reader.hear_digest()
    assert reader.observer.differed == reader.observer.gaps == 0
    assert len(reader.index) <= max_pages


def test_pages_in_storage_are_no_part_of_the_digest() -> None:
    worker, index = Worker(), PageIndex(100)
    store = index.join()
    following = Following("worker", index.join(), store, Counting())
    following.events([CacheEvent(1, "stored", "storage", b"s" * 32)])
    assert index.match([b"s" * 16], [store])[0].held == 1
    assert following.digest.is_empty
    assert worker.log.seq == 0


def test_where_one_event_in_a_hundred_is_lost_readers_are_in_step_again_within_two_seconds() -> None:
    dice, worker = Random(7), Worker()
    reader = Reader(worker)
    reader.hear_digest()
    answered_at = None
    for tick in range(3000):  # of 10 ms: the last ten seconds lose nothing
        reader.now = tick / 100
        worker.do(("serve", dice.choice(PROMPTS), dice.choice("ab")))
        for event in worker.told:
            hear_with("lost" if tick < 2000 and dice.random() < 0.01 else "arrives", reader, event)
        worker.told.clear()
        if tick % 100 == 0:  # a report
            reader.hear_digest()
        if reader.following.wants_snapshot(reader.now):
            reader.asked, answered_at = True, tick + 2
        if tick == answered_at:
            reader.answer()
            while reader.parts:
                reader.take_part()
        if tick >= 2200:
            reader.check()
    assert reader.observer.gaps > 10
    assert reader.observer.snapshots > 10
    assert reader.observer.differed == 0


def test_a_snapshot_that_takes_long_to_come_is_not_asked_for_once_more_while_it_comes() -> None:
    worker = Worker()
    for prompt in PROMPTS:
        worker.do(("serve", prompt, "a"))
    reader = Reader(worker)
    reader.hear_digest()
    reader.now = 100.0
    reader.ask()
    reader.asked = False
    reader.parts = snapshot_messages(worker.snapshot(), max_part_bytes=64)
    assert len(reader.parts) > 3
    while reader.parts:
        reader.now += ANSWER_S - 2  # a second more passes when it asks
        reader.ask()
        assert not reader.asked
        reader.take_part()
    reader.hear_digest()
    reader.check()
    assert reader.observer.snapshots == 1
