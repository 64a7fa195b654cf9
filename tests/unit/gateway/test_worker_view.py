"""What a gateway knows of one worker, from messages."""

from itertools import pairwise

from gateway.dispatch.worker_view import FleetPages, WorkerView
from gateway.observer import NullObserver
from gateway.routing.names import NameScheme
from hicache.keys import PrefixKey
from radixgate.v1 import inference_pb2, worker_pb2
from tests.unit.hicache.support import key

SCHEME = NameScheme(b"seed", 16)
PROMPT = key(list(range(100)))
NAMES = SCHEME.names(PROMPT)  # six pages
TELLS = worker_pb2.GetModelResponse(name_seed=SCHEME.seed, name_page_size=SCHEME.page_size, page_size=1, store_id="s")


class Heard(NullObserver):
    def __init__(self) -> None:
        self.predictions: list[tuple[int, int, int]] = []
        self.pages: list[tuple[int, int]] = []
        self.digests: list[bool] = []

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        self.predictions.append((predicted_tokens, cached_tokens, error_tokens))

    def cache_pages_known(self, worker: str, device: int, host: int) -> None:
        self.pages.append((device, host))

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        self.digests.append(agrees)


class World:
    def __init__(self, described: worker_pb2.GetModelResponse = TELLS) -> None:
        self.fleet = FleetPages(1000)
        self.observer = Heard()
        self.now = 100.0
        self.view = WorkerView("worker", self.fleet, self.observer, lambda: self.now)
        self.view.connected(described)
        self._seq = 0

    def tell(
        self,
        change: worker_pb2.CacheChange.ValueType,
        tier: worker_pb2.CacheTier.ValueType,
        names: list[bytes],
        seq: int | None = None,
    ) -> bool:
        """Return whether the worker is to be asked for a snapshot."""
        self._seq = self._seq + 1 if seq is None else seq
        event = worker_pb2.CacheEvent(seq=self._seq, change=change, tier=tier, names=b"".join(names))
        asked = self.view.told(worker_pb2.ConnectResponse(cache_events=[event]))
        return any(each.HasField("snapshot_query") for each in asked)

    def stored(self, names: list[bytes], tier: worker_pb2.CacheTier.ValueType = worker_pb2.CACHE_TIER_DEVICE) -> bool:
        return self.tell(worker_pb2.CACHE_CHANGE_STORED, tier, names)

    def send(self, sequence_id: int, prompt: PrefixKey = PROMPT, prompt_logprobs: int | None = None) -> None:
        params = inference_pb2.SamplingParams(n=1, prompt_logprobs=prompt_logprobs)
        self.view.sent(worker_pb2.Submit(sequence_id=sequence_id, sampling=params), prompt)

    def admit(self, sequence_id: int, prompt_tokens: int = 100, **cached: int) -> None:
        admission = worker_pb2.Admission(prompt_tokens=prompt_tokens, cached=inference_pb2.CachedTokens(**cached))
        self.view.heard(worker_pb2.SequenceOutput(sequence_id=sequence_id, admission=admission))

    def expected(self) -> int:
        """Send and cancel a request, to see what is expected of it."""
        self.send(10_000)
        self.admit(10_000)
        self.view.ended(10_000)
        return self.observer.predictions.pop()[0]


def test_what_a_worker_tells_of_its_tiers_is_expected() -> None:
    world = World()
    world.stored(NAMES[:2])
    world.stored(NAMES[:4], worker_pb2.CACHE_TIER_HOST)
    assert world.expected() == 64
    assert world.observer.pages[-1] == (2, 4)


def test_what_has_moved_to_the_host_is_there_and_not_on_the_device() -> None:
    world = World()
    world.stored(NAMES[:4])
    world.stored(NAMES[:4], worker_pb2.CACHE_TIER_HOST)
    world.tell(worker_pb2.CACHE_CHANGE_MOVED, worker_pb2.CACHE_TIER_HOST, NAMES[2:4])
    assert world.observer.pages[-1] == (2, 4)
    assert world.expected() == 64


def test_what_is_removed_is_expected_no_longer() -> None:
    world = World()
    world.stored(NAMES)
    world.tell(worker_pb2.CACHE_CHANGE_REMOVED, worker_pb2.CACHE_TIER_DEVICE, NAMES[3:])
    assert world.expected() == 48


def test_a_gap_is_followed_by_one_question() -> None:
    world = World()
    world.stored(NAMES[:1])
    assert world.tell(worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE, NAMES[1:2], seq=5)
    assert not world.tell(worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE, NAMES[2:3], seq=9)


def test_an_event_that_is_told_twice_is_taken_once() -> None:
    world = World()
    world.stored(NAMES)
    assert not world.tell(worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE, NAMES, seq=1)
    world.tell(worker_pb2.CACHE_CHANGE_REMOVED, worker_pb2.CACHE_TIER_DEVICE, NAMES, seq=2)
    assert world.expected() == 0


def test_a_question_that_nobody_answers_is_asked_again_and_less_often() -> None:
    world = World()
    world.tell(worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE, NAMES[:1], seq=5)
    asked_at = []
    for _ in range(600):
        world.now += 1.0
        if world.view.told(worker_pb2.ConnectResponse()):
            asked_at.append(world.now)
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses[0] <= 6.0
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 36.0


def test_a_new_connection_learns_from_the_first_digest_that_there_is_something_to_ask_for() -> None:
    world = World()
    full = worker_pb2.CacheDigest(seq=7, device=worker_pb2.TierDigest(num_pages=1, sum=bytes(16)))
    assert world.view.told(worker_pb2.ConnectResponse(digest=full))


def test_a_new_connection_to_an_empty_worker_asks_for_nothing() -> None:
    world = World()
    assert not world.view.told(worker_pb2.ConnectResponse(digest=worker_pb2.CacheDigest(seq=7)))
    assert not world.tell(worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE, NAMES, seq=8)
    assert world.expected() == 96


def test_nothing_is_expected_of_a_worker_that_was_lost_and_came_back() -> None:
    world = World()
    world.stored(NAMES)
    world.view.lost()
    assert world.observer.pages[-1] == (0, 0)
    world.view.connected(TELLS)
    assert world.expected() == 0


def test_what_the_worker_has_in_storage_is_not_expected_for_sure() -> None:
    world = World()
    world.stored(NAMES, worker_pb2.CACHE_TIER_STORAGE)
    world.send(1)
    world.admit(1, storage=96)
    assert world.observer.predictions == [(0, 0, 0)]
    assert world.fleet.index.match(NAMES, [world.view.candidate(0).store])[0].held == 6  # type: ignore[list-item]


def test_a_prompt_whose_tokens_are_scored_raises_no_expectation_and_is_work_all_the_same() -> None:
    world = World()
    world.stored(NAMES)
    world.send(1, prompt_logprobs=0)
    assert world.view.candidate(1).pending_tokens == 100
    world.admit(1)
    assert world.observer.predictions == []


def test_a_request_is_pending_from_when_it_is_sent_until_it_has_tokens() -> None:
    world = World()
    world.stored(NAMES)
    world.send(1)
    assert world.view.candidate(1).pending_tokens == 4
    world.admit(1, device=90)
    world.view.told(
        worker_pb2.ConnectResponse(
            load=worker_pb2.WorkerLoad(pending_tokens=10, own_pending_tokens=10, own_sequences=1)
        )
    )
    assert world.view.candidate(1).pending_tokens == 10
    world.view.heard(worker_pb2.SequenceOutput(sequence_id=1, token_ids=[5]))
    world.view.told(worker_pb2.ConnectResponse(load=worker_pb2.WorkerLoad(running_sequences=1, own_sequences=1)))
    assert (world.view.candidate(1).pending_tokens, world.view.candidate(1).sequences) == (0, 1)


def test_which_adapters_are_where_they_compute_is_known() -> None:
    world = World()
    there, away = worker_pb2.Adapter(revision="there", resident=True), worker_pb2.Adapter(revision="away")
    world.view.told(worker_pb2.ConnectResponse(adapters=worker_pb2.AdapterSet(adapters=[there, away])))
    assert world.view.candidate(0).resident_adapters == {"there"}


def test_unique_prompts_without_end_leave_what_is_remembered_bounded() -> None:
    world = World(worker_pb2.GetModelResponse(page_size=1))  # it tells nothing
    for sequence_id in range(1, 2000):
        world.send(sequence_id, key([sequence_id] * 64))
        world.view.heard(worker_pb2.SequenceOutput(sequence_id=sequence_id, token_ids=[1]))
        world.view.ended(sequence_id)
    assert len(world.fleet.index) == 1000
    world.fleet.index.check()
