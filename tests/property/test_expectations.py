"""What a gateway expects of a worker's cache, beside a real cache that has been sent the same."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.observer import NullObserver
from gateway.routing.expected import UNTOLD, Expectation, Pages, ToldExpectation, UntoldExpectation
from gateway.routing.following import CacheEvent, Following
from gateway.routing.index import PageIndex
from gateway.routing.names import NameScheme
from hicache.cache import PrefixCache
from hicache.events import CacheEvent as Told
from hicache.events import EventLog
from hicache.keys import PrefixKey, Segment
from hicache.radix.naming import PageNames
from tests.unit.hicache.support import namespace

PAGE = UNTOLD.page_size
# Few runs of tokens, longer and shorter than a page, so that prompts often share some and part within one.
RUNS = ([1] * PAGE, [2] * PAGE, [3] * 5, [4], [1] * (2 * PAGE - 1))
TOKENS = st.lists(st.sampled_from(RUNS), min_size=1, max_size=6).map(lambda runs: [t for run in runs for t in run])


@st.composite
def keys(draw: st.DrawFn) -> PrefixKey:
    """Prompts of two tenants, some behind a public prefix of the one length that it has."""
    own = Segment(namespace(draw(st.sampled_from("ab"))), draw(TOKENS))
    public = Segment(namespace("public"), [1] * (PAGE + 3))
    return PrefixKey((public, own)) if draw(st.booleans()) else PrefixKey((own,))


class Worker:
    """A real cache, and what its gateway expects of it."""

    def __init__(self, num_slots: int, cache_page_size: int, max_pages: int = 10_000) -> None:
        self.scheme = NameScheme(b"seed", 2 * cache_page_size)
        self.index = PageIndex(max_pages)
        self.pages = Pages(self.index, self.scheme, cache_page_size)
        self.following = Following("worker", self.pages.holder, None, NullObserver())
        log = EventLog(PageNames(self.scheme.page_size, b"seed"), on_event=self._tell)
        self.cache = PrefixCache(num_slots, page_size=cache_page_size, events=log)
        self.now = 0.0

    def _tell(self, event: Told) -> None:
        self.following.events([CacheEvent(event.seq, event.kind.value, event.tier, event.packed)])

    def serve(self, key: PrefixKey, completion: list[int]) -> tuple[Expectation, int]:
        """Return what was expected, and what was cached."""
        self.now += 1.0
        expectation = ToldExpectation(self.pages, key)
        return expectation, run(self.cache, expectation, key, completion, self.now)


def run(cache: PrefixCache, expectation: Expectation, key: PrefixKey, completion: list[int], now: float) -> int:
    whole = key.extend(completion[:-1])
    with cache.acquire(key, now=now, max_tokens=len(key) - 1) as lease:
        cached = lease.hit.device
        assert lease.reserve(len(whole) - cached, now=now)
        lease.commit(whole, now=now)
    expectation.generated(0, completion)
    expectation.ended()
    return cached


@given(st.lists(st.tuples(keys(), TOKENS), max_size=12))
def test_of_a_worker_that_tells_nothing_what_it_was_sent_is_expected_where_nothing_is_evicted(
    requests: list[tuple[PrefixKey, list[int]]],
) -> None:
    pages, cache = Pages(PageIndex(10_000), UNTOLD, 1), PrefixCache(1 << 14)
    for now, (key, completion) in enumerate(requests):
        expectation = UntoldExpectation(pages, key)
        cached = run(cache, expectation, key, completion, now)
        assert expectation.tokens <= cached < expectation.tokens + PAGE
        assert expectation.admitted(cached) == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(keys(), TOKENS), max_size=12), st.sampled_from([1, 4, 16]))
def test_of_a_worker_that_tells_exactly_what_it_has_is_expected_evictions_included(
    requests: list[tuple[PrefixKey, list[int]]], cache_page_size: int
) -> None:
    worker = Worker(1024, cache_page_size)
    for key, completion in requests:
        expectation, cached = worker.serve(key, completion)
        assert expectation.tokens <= cached < expectation.tokens + worker.scheme.page_size
        assert expectation.admitted(cached) == 0
    assert worker.pages.holder.num_pages(2) == 0  # nothing is expected of requests that have ended
    worker.index.check()


@given(keys(), st.lists(st.tuples(st.integers(0, 2), TOKENS), min_size=1, max_size=5))
def test_completions_are_remembered_as_if_they_had_been_sent(key: PrefixKey, news: list[tuple[int, list[int]]]) -> None:
    pages = Pages(PageIndex(10_000), UNTOLD, 1)
    expectation = UntoldExpectation(pages, key)
    expectation.admitted(0)
    for completion, token_ids in news:
        expectation.generated(completion, token_ids)
    expectation.ended()
    for completion in {index for index, _ in news}:
        own = [token_id for index, token_ids in news if index == completion for token_id in token_ids]
        conversation = key.extend(own[:-1])
        expected = UntoldExpectation(pages, conversation.extend([9]))
        assert expected.tokens >= len(UNTOLD.names(conversation)) * PAGE
        expected.ended()


@given(st.lists(keys(), max_size=20), st.integers(1, 6))
def test_of_the_last_prompt_as_much_of_the_beginning_is_expected_as_there_is_room_for(
    prompts: list[PrefixKey], max_pages: int
) -> None:
    index = PageIndex(max_pages)
    pages = Pages(index, UNTOLD, 1)
    for key in prompts:
        UntoldExpectation(pages, key)
        assert len(index) <= max_pages
        known = min(max_pages, len(UNTOLD.names(key)))
        assert UntoldExpectation(pages, key).tokens == min(known * PAGE, len(key) - 1)


both = pytest.mark.parametrize("expect", [ToldExpectation, UntoldExpectation])


@both
@given(prompts=st.lists(keys(), min_size=1, max_size=8), order=st.randoms(use_true_random=False))
def test_requests_that_end_without_having_been_computed_leave_nothing(
    expect: Callable[[Pages, PrefixKey], Expectation], prompts: list[PrefixKey], order: Random
) -> None:
    index = PageIndex(10_000)
    pages = Pages(index, UNTOLD, 1)
    expected = [expect(pages, key) for key in prompts]
    order.shuffle(expected)
    for each in expected:
        each.admitted(0)
        each.ended()
    assert len(index) == 0
