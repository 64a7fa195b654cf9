"""Greedy output in fp32 equals `transformers` generate also where a prompt is computed in pieces: behind a split node,
in small chunks, and with so few slots that sequences are paused and what they computed is evicted.
"""

import pytest

from tests.exactness import NUM_NEW, Bench, assert_exact, own_namespaces, token_ids
from tests.reference import Reference
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture
def some(reference: list[Reference]) -> list[Reference]:
    """Every third prompt: all of them are computed whole elsewhere, and here each is one more way to cut them."""
    return reference[::3]


def test_after_a_split_inside_a_node(fp32_model: LoadedModel, some: list[Reference]) -> None:
    """Another prompt that shares the first half was there before: the hit ends, and the node splits, inside an edge."""
    bench = Bench(fp32_model)
    namespaces = own_namespaces(len(some))
    halves = [len(each.prompt_token_ids) // 2 for each in some]
    detours = [
        [*ids[:half], (ids[half] + 1) % 40_000, *ids[half + 1 :]]
        for ids, half in zip(token_ids(some), halves, strict=True)
    ]
    bench.answers(detours, namespaces, num_new=1)
    answers = bench.answers(token_ids(some), namespaces)

    assert_exact(answers, some)
    assert [answer.cached for answer in answers] == halves


def test_with_a_pool_so_small_that_sequences_are_evicted_and_paused(
    fp32_model: LoadedModel, some: list[Reference]
) -> None:
    longest = max(len(each.prompt_token_ids) for each in some) + NUM_NEW
    bench = Bench(fp32_model, num_slots=2 * longest, max_running=8, headroom_tokens=1)
    answers = bench.answers(token_ids(some))

    assert_exact(answers, some)
    assert bench.observer.pauses > 0
    assert bench.cache.stats().evicted_tokens > 0
    for answer, each in zip(answers, some, strict=True):
        assert answer.admission is not None
        assert answer.admission.prompt_tokens == len(each.prompt_token_ids)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefilled_in_chunks(fp32_model: LoadedModel, some: list[Reference], chunk: int) -> None:
    num_cut = sum(len(each.prompt_token_ids) > chunk for each in some)
    assert num_cut >= len(some) / 2, "most prompts are no longer than a chunk"
    bench = Bench(fp32_model, max_chunk_tokens=chunk)
    answers = bench.answers(token_ids(some), own_namespaces(len(some)))

    assert_exact(answers, some)
    assert [answer.cached for answer in answers] == [0] * len(some)
