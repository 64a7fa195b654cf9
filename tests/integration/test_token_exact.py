"""The cache never changes an answer: greedy output in fp32 equals `transformers` generate, token for token.

Cold and warm, alone and in company, token by token and by pages. The ways to compute a prompt in pieces are in
`test_token_exact_pieces.py`.
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


def test_cold_one_at_a_time(model: LoadedModel, reference: list[Reference]) -> None:
    bench = Bench(model, max_running=1)
    answers = bench.answers(token_ids(reference)[:4], own_namespaces(4))

    assert_exact(answers, reference[:4])
    assert [answer.cached for answer in answers] == [0] * 4


@pytest.mark.parametrize("page_size", [1, 16])
def test_cold_and_warm_thirty_two_at_once(model: LoadedModel, reference: list[Reference], page_size: int) -> None:
    bench = Bench(model, page_size=page_size, max_running=32)
    namespaces = own_namespaces(len(reference))
    cold = bench.answers(token_ids(reference), namespaces)
    warm = bench.answers(token_ids(reference), namespaces)

    assert_exact(cold, reference)
    assert_exact(warm, reference)
    assert [answer.cached for answer in cold] == [0] * len(reference)
    longest = [(len(each.prompt_token_ids) - 1) // page_size * page_size for each in reference]
    assert [answer.cached for answer in warm] == longest
