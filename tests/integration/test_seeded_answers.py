"""A seeded answer is a function of its request, in fp32: alone, in company, after pauses, with its prompt cached."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hicache.cache import PrefixCache
from hicache.keys import Namespace
from tests.driver import request, run_completions
from tests.exactness import Recorder, own_namespaces, token_ids
from tests.fakes.tiny_llama import tiny_llama
from tests.fakes.tiny_tokenizer import tiny_tokenizer
from tests.reference import Reference
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.constraints import Constraint
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.engine.ports import Request
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.constraints import JsonSchema, Regex
from worker.model.loading import LoadedModel

ALONE = slice(16, 20)  # of several completions, and under constraints
NUM_SLOTS = 12_288
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 50, "repetition_penalty": 1.2},
    {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.5},
    {"temperature": 1.0, "n": 3, "frequency_penalty": 0.7},
    {"temperature": 1.3, "top_p": 0.95, "n": 2, "logprobs": 1},
)
CONSTRAINTS = (
    None,
    None,
    Regex(r"[A-Za-z ,.]{1,60}\."),
    JsonSchema('{"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4}'),
)

Completions = list[list[list[int]]]


class Bench:
    """An engine on a fresh cache, and whoever else is around when it is asked."""

    def __init__(self, model: LoadedModel, *, num_slots: int = NUM_SLOTS, page_size: int = 1, **config: int) -> None:
        info = model.info
        self.observer = Recorder()
        self._engine = Engine(
            PrefixCache(num_slots, page_size=page_size),
            InlineExecutor(model.executor(model.pool(num_slots))),
            model.text,
            ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
            EngineConfig(**config),  # type: ignore[arg-type]
            observer=self.observer,
        )
        self._number = 0

    def answers(self, asked: list[Request]) -> Completions:
        """Ask all at once; return the tokens of each completion of each request."""
        numbered = []
        for each in asked:
            self._number += 1
            numbered.append(replace(each, sequence_id=(0, self._number)))
        return [[answer.token_ids for answer in each] for each in run_completions(self._engine, numbered)]


def varied(
    model: LoadedModel, prompts: list[list[int]], namespaces: list[Namespace], max_new_tokens: int
) -> list[Request]:
    """Requests with every way to sample, and with constraints."""
    compiler = GrammarCompiler(model.info.tokenizer_json, model.info.vocab_size, model.info.eos_token_ids)
    compiled: list[Constraint | None] = [
        None if each is None else compiler.compile(each).result(20) for each in CONSTRAINTS
    ]
    compiler.close()
    asked = []
    for index, (prompt, namespace) in enumerate(zip(prompts, namespaces, strict=True)):
        params = SamplingParams(max_new_tokens=max_new_tokens, seed=index, **SAMPLING[index % len(SAMPLING)])
        plain = request(index, prompt, namespace=namespace, params=params)
        asked.append(replace(plain, constraint=compiled[index // len(SAMPLING) % len(compiled)]))
    return asked


def assert_all_differ(answers: Completions, at_least: int) -> None:
    assert len({tuple(tokens) for completions in answers for tokens in completions}) >= at_least


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tiny_requests(tiny: LoadedModel) -> list[Request]:
    """As many as sample in every way under every constraint; some share prompts."""
    words = tiny_tokenizer().encode("The capital of France is Paris, on the river Seine. The quick brown fox jumps").ids
    prompts = [words[: 5 + 3 * (index % 4)] for index in range(24)]
    return varied(tiny, prompts, [Namespace(bytes(16))] * 24, max_new_tokens=40)


@pytest.fixture(scope="module")
def tiny_alone(tiny: LoadedModel, tiny_requests: list[Request]) -> Completions:
    """Each request on an engine of its own."""
    alone = [Bench(tiny, max_running=1, num_slots=256).answers([each])[0] for each in tiny_requests]
    assert_all_differ(alone, at_least=35)
    return alone


def test_a_tiny_models_answers_do_not_depend_on_company_or_cache(
    tiny: LoadedModel, tiny_requests: list[Request], tiny_alone: Completions
) -> None:
    company = Bench(tiny, max_running=32)
    assert company.answers(tiny_requests) == tiny_alone
    assert company.observer.most_side_by_side >= 24
    assert company.answers(tiny_requests) == tiny_alone


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_tiny_models_answers_do_not_depend_on_pauses(
    tiny: LoadedModel, tiny_requests: list[Request], tiny_alone: Completions, page_size: int
) -> None:
    crowded = Bench(tiny, num_slots=192, page_size=page_size, max_running=16, headroom_tokens=1, max_chunk_tokens=5)
    assert crowded.answers(tiny_requests) == tiny_alone
    assert crowded.observer.pauses > 0


def test_the_first_of_several_completions_is_the_only_one_of_a_request_for_one(
    tiny: LoadedModel, tiny_requests: list[Request], tiny_alone: Completions
) -> None:
    single = [replace(each, params=replace(each.params, n=1)) for each in tiny_requests]
    assert [[completions[0]] for completions in tiny_alone] == Bench(tiny).answers(single)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_real_models_answers_do_not_depend_on_company_pauses_or_cache(
    fp32_model: LoadedModel, reference: list[Reference]
) -> None:
    prompts, namespaces = [ids[:64] for ids in token_ids(reference[:24])], own_namespaces(24)
    asked = varied(fp32_model, prompts, namespaces, max_new_tokens=14)
    company = Bench(fp32_model, max_running=64)
    together = company.answers(asked)
    cached = company.answers(asked)
    alone = [Bench(fp32_model, max_running=1).answers([each])[0] for each in asked[ALONE]]
    crowded = Bench(fp32_model, num_slots=1_024, max_running=32, headroom_tokens=1)

    assert company.observer.most_side_by_side >= 32
    assert alone == together[ALONE]
    assert cached == together
    assert crowded.answers(asked) == together
    assert crowded.observer.pauses > 0
    assert_all_differ(together, at_least=28)
    assert np.mean([len(tokens) for completions in together for tokens in completions]) > 8
