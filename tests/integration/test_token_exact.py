"""The cache never changes an answer: greedy output in fp32 equals `transformers` generate, token for token.

Cold and warm, alone and in company, token by token and by pages. The ways to compute a prompt in pieces are in
`test_token_exact_pieces.py`.
"""

import pytest

from tests.exactness import Bench, assert_exact, own_namespaces, token_ids
from tests.reference import Reference
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_cold_one_at_a_time(fp32_model: LoadedModel, reference: list[Reference]) -> None:
    bench = Bench(fp32_model, max_running=1)
    answers = bench.answers(token_ids(reference)[:4], own_namespaces(4))

    assert_exact(answers, reference[:4])
    assert [answer.cached for answer in answers] == [0] * 4


@pytest.mark.parametrize("page_size", [1, 16])
def test_cold_and_warm_thirty_two_at_once(fp32_model: LoadedModel, reference: list[Reference], page_size: int) -> None:
    bench = Bench(fp32_model, page_size=page_size, max_running=32)
    namespaces = own_namespaces(len(reference))
    cold = bench.answers(token_ids(reference), namespaces)
    cold_side_by_side, bench.observer.most_side_by_side = bench.observer.most_side_by_side, 0
    warm = bench.answers(token_ids(reference), namespaces)

    assert_exact(cold, reference)
    assert_exact(warm, reference)
    assert cold_side_by_side == bench.observer.most_side_by_side == 32
    assert [answer.cached for answer in cold] == [0] * len(reference)
    longest = [(len(each.prompt_token_ids) - 1) // page_size * page_size for each in reference]
    assert [answer.cached for answer in warm] == longest
