"""What a gateway expects of a worker's cache, beside a real cache that has been sent the same."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.sent import BLOCK_TOKENS, SentPrefixes, block_names
from hicache.cache import PrefixCache
from hicache.keys import PrefixKey, Segment
from tests.unit.hicache.support import namespace

# Few runs of tokens, longer and shorter than a block, so that prompts often share some and part within one.
RUNS = ([1] * BLOCK_TOKENS, [2] * BLOCK_TOKENS, [3] * 5, [4], [1] * (2 * BLOCK_TOKENS - 1))
TOKENS = st.lists(st.sampled_from(RUNS), min_size=1, max_size=6).map(lambda runs: [t for run in runs for t in run])


@st.composite
def keys(draw: st.DrawFn) -> PrefixKey:
    """Prompts of two tenants, some behind a public prefix of the one length that it has."""
    own = Segment(namespace(draw(st.sampled_from("ab"))), draw(TOKENS))
    public = Segment(namespace("public"), [1] * (BLOCK_TOKENS + 3))
    return PrefixKey((public, own)) if draw(st.booleans()) else PrefixKey((own,))


@given(st.lists(st.tuples(keys(), TOKENS), max_size=12))
def test_where_nothing_is_evicted_the_cache_has_what_is_expected_and_less_than_a_block_more(
    requests: list[tuple[PrefixKey, list[int]]],
) -> None:
    sent, cache = SentPrefixes(), PrefixCache(1 << 14)
    for now, (key, completion) in enumerate(requests):
        expectation = sent.sent(key)
        whole = key.extend(completion[:-1])
        with cache.acquire(key, now=now, max_tokens=len(key) - 1) as lease:
            cached = lease.hit.device
            assert lease.reserve(len(whole) - cached, now=now)
            lease.commit(whole, now=now)
        assert expectation.tokens <= cached < expectation.tokens + BLOCK_TOKENS
        assert expectation.admitted(cached) == 0
        expectation.generated(0, completion)
        expectation.ended()


@given(keys(), st.lists(st.tuples(st.integers(0, 2), TOKENS), min_size=1, max_size=5))
def test_completions_are_remembered_as_if_they_had_been_sent(key: PrefixKey, news: list[tuple[int, list[int]]]) -> None:
    sent = SentPrefixes()
    expectation = sent.sent(key)
    expectation.admitted(0)
    for completion, token_ids in news:
        expectation.generated(completion, token_ids)
    expectation.ended()
    for completion in {index for index, _ in news}:
        own = [token_id for index, token_ids in news if index == completion for token_id in token_ids]
        conversation = key.extend(own[:-1])
        expected = sent.sent(conversation.extend([9]))
        assert expected.tokens >= len(block_names(conversation)) * BLOCK_TOKENS
        expected.ended()


@given(st.lists(keys(), max_size=20), st.integers(1, 6))
def test_what_is_remembered_is_bounded_and_of_the_last_prompt_it_is_the_beginning(
    prompts: list[PrefixKey], max_blocks: int
) -> None:
    sent = SentPrefixes(max_blocks)
    for key in prompts:
        sent.sent(key)
        assert len(sent) <= max_blocks
        known = min(max_blocks, len(block_names(key)))
        assert sent.sent(key).tokens == min(known * BLOCK_TOKENS, len(key) - 1)
