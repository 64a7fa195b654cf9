"""Greedy output in fp32 equals `transformers` generate with every attention backend, below shared prefixes.

Everything else that the cache can do is tested with the default alone (`test_token_exact.py`): what backends do
differently is to compute several sequences at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from tests.exactness import NUM_PROMPTS, Bench, assert_exact, token_ids
from tests.reference import Reference, greedy_reference, prompts
from worker.attention.backend import AttentionBackend, AttentionPlan
from worker.attention.registry import available_backends, backend_by_name
from worker.attention.sharing import shared_ranges
from worker.batch import Batch
from worker.config import ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress
from worker.model.transformers_forward import TransformersModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

CPU = torch.device("cpu")
QUESTIONS, TIMES, ANSWER_TOKENS = 3, 6, 8
REPEATED = 4
COMPUTED = 20  # tokens of each prompt that are not there yet


@dataclass
class Watched:
    """A backend, and of each step how many rows shared enough for any backend to compute it at once."""

    backend: AttentionBackend
    rows_of_steps: list[list[int]] = field(default_factory=list)

    def plan(self, batch: Batch) -> AttentionPlan:
        rows = batch.qo_indptr[1:] - batch.qo_indptr[:-1]
        shared = shared_ranges(batch, min_tokens=64, min_rows=TIMES, min_saved=384)
        self.rows_of_steps.append([int(rows[each.sequences].sum()) for each in shared])
        return self.backend.plan(batch)


@pytest.fixture(scope="module")
def plain_model() -> LoadedModel:
    config = ModelConfig(dtype="fp32", threads=1, forward="transformers", attention="torch")
    return load_model(config, SilentProgress())


@pytest.fixture(scope="module")
def related(plain_model: LoadedModel) -> list[Reference]:
    """Long questions that begin alike, and what is answered."""
    first, *others = sorted(prompts(NUM_PROMPTS), key=len, reverse=True)[: QUESTIONS + 1]
    # What only those that are alike share must be long enough to be worth it, whichever prompts there are.
    questions = [f"{first}\n" + f"{other}\n" * REPEATED for other in others]
    return greedy_reference(plain_model, questions, max_new_tokens=ANSWER_TOKENS)


def asked_again(references: Sequence[Reference]) -> list[Reference]:
    """Every question several times, those that are alike far from each other."""
    return [each for _ in range(TIMES) for each in references]


@pytest.mark.parametrize("backend", available_backends(CPU))
def test_below_prefixes_that_several_sequences_share(
    plain_model: LoadedModel, related: list[Reference], backend: str
) -> None:
    """Nobody waits for the other: all compute the same last tokens of a prompt, and then the same answer, at once."""
    watched = Watched(backend_by_name(backend, CPU))
    assert isinstance(plain_model.model, TransformersModel)
    model = replace(plain_model, model=replace(plain_model.model, backend=watched))
    bench = Bench(model, max_chunk_tokens=40, min_shared_tokens=100_000)
    bench.answers([ids[:-COMPUTED] for ids in token_ids(related)], num_new=1)
    watched.rows_of_steps.clear()
    references = asked_again(related)
    answers = bench.answers(token_ids(references), num_new=ANSWER_TOKENS)

    assert_exact(answers, references)
    assert [answer.cached for answer in answers] == [len(each.prompt_token_ids) - COMPUTED for each in references]
    prefill, decode = watched.rows_of_steps[0], watched.rows_of_steps[-2]
    assert prefill == [QUESTIONS * TIMES * COMPUTED, *[TIMES * COMPUTED] * QUESTIONS]
    assert decode == [QUESTIONS * TIMES, *[TIMES] * QUESTIONS]
