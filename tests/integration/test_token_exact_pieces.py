"""Greedy output in fp32 equals `transformers` generate also where a prompt is computed in pieces: behind a split node,
in small chunks, and with so few slots that sequences are paused and what they computed is evicted.
"""

import pytest

from tests.exactness import NUM_NEW, NUM_PROMPTS, Bench, assert_exact, own_namespaces, token_ids
from tests.reference import Reference, greedy_reference, prompts
from worker.config import ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelConfig(dtype="fp32", threads=1), SilentProgress())


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> list[Reference]:
    """What `generate` answers to 64 different prompts."""
    references = greedy_reference(model, prompts(NUM_PROMPTS), max_new_tokens=NUM_NEW)
    assert len({tuple(each.prompt_token_ids) for each in references}) == NUM_PROMPTS
    return references


def test_after_a_split_inside_a_node(model: LoadedModel, reference: list[Reference]) -> None:
    """Another prompt that shares the first half was there before: the hit ends, and the node splits, inside an edge."""
    bench = Bench(model)
    namespaces = own_namespaces(len(reference))
    halves = [len(each.prompt_token_ids) // 2 for each in reference]
    detours = [
        [*ids[:half], (ids[half] + 1) % 40_000, *ids[half + 1 :]]
        for ids, half in zip(token_ids(reference), halves, strict=True)
    ]
    bench.answers(detours, namespaces)
    answers = bench.answers(token_ids(reference), namespaces)

    assert_exact(answers, reference)
    assert [answer.cached for answer in answers] == halves


def test_with_a_pool_so_small_that_sequences_are_evicted_and_paused(
    model: LoadedModel, reference: list[Reference]
) -> None:
    longest = max(len(each.prompt_token_ids) for each in reference) + NUM_NEW
    bench = Bench(model, num_slots=2 * longest, max_running=8, headroom_tokens=1)
    answers = bench.answers(token_ids(reference))

    assert_exact(answers, reference)
    assert bench.observer.pauses > 0
    assert bench.cache.stats().evicted_tokens > 0
    for answer, each in zip(answers, reference, strict=True):
        assert answer.admission is not None
        assert answer.admission.prompt_tokens == len(each.prompt_token_ids)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefilled_in_chunks(model: LoadedModel, reference: list[Reference], chunk: int) -> None:
    bench = Bench(model, max_chunk_tokens=chunk)
    answers = bench.answers(token_ids(reference), own_namespaces(len(reference)))

    assert_exact(answers, reference)
    assert [answer.cached for answer in answers] == [0] * len(reference)
