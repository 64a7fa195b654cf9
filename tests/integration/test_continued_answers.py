"""The real model, in fp32: an answer that is cut off and goes on on another engine is what it would have been."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from hicache.cache import PrefixCache
from tests.driver import Answer, request, run_completions
from tests.exactness import assert_exact, own_namespaces, token_ids
from tests.reference import Reference, chat_token_ids
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.engine.ports import Continued, FinishReason, Request
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.constraints import JsonSchema
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_SLOTS = 1_024
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["city", "old"],
    "additionalProperties": False,
}


def engine_of(model: LoadedModel) -> Engine:
    info = model.info
    return Engine(
        PrefixCache(NUM_SLOTS),
        InlineExecutor(model.executor(model.pool(NUM_SLOTS))),
        model.text,
        ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
        EngineConfig(check=True),
    )


def cut_off(model: LoadedModel, asked: Sequence[Request], num_steps: int) -> list[list[Answer]]:
    """Return what an engine has told of each completion after so many steps."""
    engine = engine_of(model)
    told = {each.sequence_id: [Answer() for _ in range(each.params.n)] for each in asked}
    for each in asked:
        engine.submit(each, now=0.0)
    for step in range(num_steps):
        for output in engine.step(now=float(step)):
            answer = told[output.sequence_id][output.index]
            answer.token_ids += output.token_ids
            answer.text += output.text
            answer.finish = output.finish
    return list(told.values())


def moved(model: LoadedModel, asked: Sequence[Request], num_steps: int) -> list[list[Answer]]:
    """Return the whole answers to requests that go on on another engine after so many steps."""
    begun = cut_off(model, asked, num_steps)
    rest = [
        replace(
            each,
            continued=tuple(
                [Continued(index, tuple(told.token_ids)) for index, told in enumerate(answers) if told.finish is None]
            ),
        )
        for each, answers in zip(asked, begun, strict=True)
    ]
    assert all(each.token_ids for answers in begun for each in answers), "some have not begun"
    assert any(each.continued for each in rest), "all have ended"
    ended = run_completions(engine_of(model), [each for each in rest if each.continued])
    for each in rest:
        if each.continued:
            for index, answer in enumerate(ended.pop(0)):
                _append(begun[rest.index(each)][index], answer)
    return begun


def _append(begun: Answer, rest: Answer) -> None:
    begun.token_ids += rest.token_ids
    begun.text += rest.text
    begun.finish = rest.finish or begun.finish


def same(one: list[list[Answer]], other: list[list[Answer]]) -> bool:
    return _said(one) == _said(other)


def _said(answers: list[list[Answer]]) -> list[list[tuple[Any, ...]]]:
    return [[(answer.token_ids, answer.text, answer.finish) for answer in each] for each in answers]


@pytest.fixture(scope="module")
def tokenizer(fp32_model: LoadedModel) -> Tokenizer:
    return Tokenizer.from_buffer(fp32_model.info.tokenizer_json)


def test_greedy_answers_are_those_of_generate(fp32_model: LoadedModel, reference: list[Reference]) -> None:
    some = reference[:4]
    asked = [
        request(number, prompt, namespace=namespace, params=SamplingParams(max_new_tokens=16, temperature=0.0))
        for number, (prompt, namespace) in enumerate(zip(token_ids(some), own_namespaces(4), strict=True))
    ]
    answers = [answer for (answer,) in moved(fp32_model, asked, num_steps=7)]
    assert_exact(answers, some)


def test_seeded_answers_are_what_they_would_have_been(fp32_model: LoadedModel, reference: list[Reference]) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 50, "repetition_penalty": 1.2},
        {"temperature": 1.0, "n": 3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    )
    asked = [
        request(number, list(each.prompt_token_ids), params=SamplingParams(max_new_tokens=16, seed=number, **way))
        for number, (each, way) in enumerate(zip(reference[4:], ways, strict=False))
    ]
    truth = run_completions(engine_of(fp32_model), asked)
    assert same(moved(fp32_model, asked, 6), truth)
    assert len({tuple(answer.token_ids) for answers in truth for answer in answers}) == 5


def test_a_document_that_is_cut_off_still_fulfils_its_schema(fp32_model: LoadedModel) -> None:
    info = fp32_model.info
    compiler = GrammarCompiler(info.tokenizer_json, info.vocab_size, info.eos_token_ids)
    constraint = compiler.compile(JsonSchema(json.dumps(SCHEMA))).result(60)
    compiler.close()
    prompt = chat_token_ids(info, "Name an old city, as JSON.")
    asked = [
        replace(
            request(0, prompt, params=SamplingParams(max_new_tokens=64, temperature=0.9, seed=5, n=2)),
            constraint=constraint,
        )
    ]
    truth = run_completions(engine_of(fp32_model), asked)
    for num_steps in (3, 8):
        answers = moved(fp32_model, asked, num_steps)
        assert same(answers, truth)
        for answer in answers[0]:
            assert answer.finish is FinishReason.STOP
            jsonschema.validate(json.loads(answer.text), SCHEMA)


def test_a_stop_string_that_began_before_the_cut_ends_the_text_where_it_begins(fp32_model: LoadedModel) -> None:
    prompt = chat_token_ids(fp32_model.info, "Count from one to ten, in words.")
    params = SamplingParams(max_new_tokens=24, temperature=0.0)
    plain = run_completions(engine_of(fp32_model), [request(0, prompt, params=params)])[0][0]
    stop = plain.text[len(plain.text) // 3 : len(plain.text) * 2 // 3]
    asked = [request(0, prompt, params=replace(params, stop=(stop,)))]
    truth = run_completions(engine_of(fp32_model), asked)
    assert truth[0][0].finish is FinishReason.STOP
    assert truth[0][0].text == plain.text[: plain.text.index(stop)]
    num_tokens = len(truth[0][0].token_ids)
    held = cut_off(fp32_model, asked, num_tokens - 1)[0][0]
    assert held.text == truth[0][0].text, "the cut is not inside of the stop string"
    assert same(moved(fp32_model, asked, num_tokens - 1), truth)
    assert same(moved(fp32_model, asked, num_tokens // 2), truth)


def test_a_character_that_began_before_the_cut_is_told_whole(fp32_model: LoadedModel, tokenizer: Tokenizer) -> None:
    """The model goes on with what it was shown, whose characters have several tokens each."""
    prompt = tokenizer.encode("I like 🦊. " * 8, add_special_tokens=False).ids
    asked = [request(0, prompt, params=SamplingParams(max_new_tokens=14, temperature=0.0, ignore_eos=True))]
    truth = run_completions(engine_of(fp32_model), asked)
    assert truth[0][0].text.count("🦊") >= 2
    cuts_inside = 0
    for num_steps in range(3, 7):
        begun = cut_off(fp32_model, asked, num_steps)[0][0]
        cuts_inside += tokenizer.decode(begun.token_ids).endswith("\N{REPLACEMENT CHARACTER}")
        assert same(moved(fp32_model, asked, num_steps), truth)
    assert cuts_inside > 0
