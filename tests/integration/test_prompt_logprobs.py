"""Log probabilities of a prompt are those of transformers' own forward pass, whatever is cached, in fp32."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hicache.cache import PrefixCache
from tests.driver import Answer, request, run
from tests.exactness import token_ids
from tests.fakes.tiny_llama import tiny_llama
from tests.reference import Reference
from worker.batch import SamplingParams, TokenLogprobs
from worker.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.model.loading import LoadedModel

TOLERANCE = 2e-4  # of two ways to add up in fp32
NUM_TOP = 5


def engine_of(model: LoadedModel, page_size: int = 1, **config: int) -> Engine:
    info = model.info
    return Engine(
        PrefixCache(4096, page_size=page_size),
        InlineExecutor(model.executor(model.pool(4096))),
        model.text,
        ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
        EngineConfig(**config),  # type: ignore[arg-type]
    )


def ask(engine: Engine, prompts: list[list[int]], first: int, num_top: int | None = NUM_TOP) -> list[Answer]:
    params = SamplingParams(max_new_tokens=2, temperature=0.0, prompt_logprobs=num_top)
    return run(engine, [request(first + index, prompt, params=params) for index, prompt in enumerate(prompts)])


def plain_logprobs(model: LoadedModel, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Per prompt float32[tokens, vocabulary]: row i is of the token behind token i."""
    plain: Any = AutoModelForCausalLM.from_pretrained(model.folder.path, dtype=torch.float32, local_files_only=True)
    plain.train(False)
    with torch.inference_mode():
        return [torch.log_softmax(plain(torch.tensor([prompt])).logits[0], dim=-1) for prompt in prompts]


def assert_equal(found: list[TokenLogprobs], expected: torch.Tensor, prompt: list[int]) -> None:
    assert len(found) == len(prompt) - 1
    for position, entry in enumerate(found):
        row = expected[position]
        assert entry.logprob == pytest.approx(float(row[prompt[position + 1]]), abs=TOLERANCE)
        assert [value for _, value in entry.top] == pytest.approx(row.topk(NUM_TOP).values.tolist(), abs=TOLERANCE)
        assert all(value == pytest.approx(float(row[token]), abs=TOLERANCE) for token, value in entry.top)


def assert_all_equal(answers: list[Answer], expected: list[torch.Tensor], prompts: list[list[int]]) -> None:
    for answer, rows, prompt in zip(answers, expected, prompts, strict=True):
        assert_equal(answer.prompt_logprobs, rows, prompt)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [3, 256])
def test_a_tiny_models_are_the_same_cold_warm_and_in_pieces(tiny: LoadedModel, page_size: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 400, (length,), generator=generator).tolist() for length in (1, 2, 17, 90, 150)]
    expected = plain_logprobs(tiny, prompts)
    engine = engine_of(tiny, page_size, max_chunk_tokens=chunk)
    assert_all_equal(ask(engine, prompts, 0), expected, prompts)
    plain = ask(engine, prompts, 100, num_top=None)
    assert sum(answer.cached for answer in plain) > 150
    warm = ask(engine, prompts, 200)
    assert_all_equal(warm, expected, prompts)
    assert [answer.cached for answer in warm] == [0] * len(prompts)
    assert [answer.token_ids for answer in warm] == [answer.token_ids for answer in plain]


@pytest.mark.model
def test_the_real_models_are_those_of_transformers(fp32_model: LoadedModel, reference: list[Reference]) -> None:
    prompts = token_ids(reference[:4])
    expected = plain_logprobs(fp32_model, prompts)
    engine = engine_of(fp32_model)
    for first in (0, 100):
        assert_all_equal(ask(engine, prompts, first), expected, prompts)
