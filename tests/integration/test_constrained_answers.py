"""Completions under constraints, by a model that would write anything else: every whole one fulfils its constraint."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from hicache.cache import PrefixCache
from tests.driver import Answer, request, run, run_completions
from tests.fakes.tiny_llama import tiny_llama
from tests.fakes.tiny_tokenizer import tiny_tokenizer
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.engine.ports import FinishReason, Request
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.constraints import Choice, JsonSchema, Regex, TextConstraint
from worker.model.loading import LoadedModel

PROMPT = tiny_tokenizer().encode("You are a helpful assistant. What is the capital of France?").ids
NUM_SLOTS = 8192
WORD = {"type": "string", "maxLength": 6}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": closed(
        ["name", "age"], name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, ok={"type": "boolean"}
    ),
    "nested": closed(
        ["at", "tags"],
        at=closed(["x", "y"], x={"type": "number", "minimum": -1, "maximum": 1}, y={"type": "null"}),
        tags={"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
    ),
    "enum": {"enum": ["red", "green", 7, None, [1, 2], {"a": "b"}]},
    "const": closed(["v"], v={"const": 1}),
    "alternatives": {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": "boolean"}, WORD]},
    "array": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 5}, "maxItems": 6},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}],
        "items": False,
        "minItems": 2,
    },
    "pattern": closed(
        ["id", "on"], id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, on={"type": "string", "format": "date"}
    ),
    "reference": {
        "$defs": {"leaf": closed(["v"], v={"enum": [0, 1]})},
        "type": "array",
        "items": {"$ref": "#/$defs/leaf"},
        "minItems": 1,
        "maxItems": 3,
    },
    "optional": closed([], a={"type": "boolean"}, b={"type": "null"}, c={"enum": ["x"]}),
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1.5},
    "map": {"type": "object", "patternProperties": {"^[a-c]{1,3}$": {"enum": [1]}}, "additionalProperties": False},
}
NUM_EACH = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def compiler(model: LoadedModel) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(model.info.tokenizer_json, model.info.vocab_size, model.info.eos_token_ids)
    yield made
    made.close()


@pytest.fixture
def engine(model: LoadedModel) -> Engine:
    return engine_of(model)


def engine_of(model: LoadedModel, num_slots: int = NUM_SLOTS, page_size: int = 1, **config: int) -> Engine:
    info = model.info
    return Engine(
        PrefixCache(num_slots, page_size=page_size),
        InlineExecutor(model.executor(model.pool(num_slots))),
        model.text,
        ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
        EngineConfig(**config),  # type: ignore[arg-type]
    )


def held(compiler: GrammarCompiler, number: int, constraint: TextConstraint, **params: Any) -> Request:
    values = {"max_new_tokens": 400, "seed": number, **params}
    plain = request(number, PROMPT, params=SamplingParams(**values))
    return replace(plain, constraint=compiler.compile(constraint).result(20))


def whole(answers: list[Answer]) -> list[str]:
    """The texts of those that were not cut off."""
    assert all(isinstance(answer.finish, FinishReason) for answer in answers), [answer.finish for answer in answers]
    return [answer.text for answer in answers if answer.finish is FinishReason.STOP]


def test_hundreds_of_documents_fulfil_their_schemas_whether_their_prompt_is_cached_or_not(
    engine: Engine, compiler: GrammarCompiler
) -> None:
    assert len(SCHEMAS) * NUM_EACH >= 240
    runs: list[list[str]] = []
    for first in (0, 10_000):
        requests = [
            replace(
                held(compiler, index, JsonSchema(json.dumps(schema)), temperature=1.3), sequence_id=(0, first + index)
            )
            for index, schema in enumerate(list(SCHEMAS.values()) * NUM_EACH)
        ]
        answers = run(engine, requests)
        runs.append([answer.text for answer in answers])
        documents = [
            (json.loads(answer.text), schema)
            for answer, schema in zip(answers, list(SCHEMAS.values()) * NUM_EACH, strict=True)
            if answer.finish is FinishReason.STOP
        ]
        assert len(documents) >= 200
        for document, schema in documents:
            jsonschema.validate(document, schema, format_checker=jsonschema.FormatChecker())
        assert sum(answer.cached for answer in answers) > 0
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 100


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9]{3}-[0-9]{4}",
        r"(red|green|blue)(, (red|green|blue)){0,3}",
        r"\d{1,3}(\.\d{1,3}){3}",
        r"[a-f]+z",
        "ä(b|é){3}",
    ],
)
def test_texts_match_their_regular_expression_as_a_whole(
    engine: Engine, compiler: GrammarCompiler, pattern: str
) -> None:
    answers = run(engine, [held(compiler, number, Regex(pattern), max_new_tokens=60) for number in range(12)])
    texts = whole(answers)
    assert len(texts) >= 6
    assert all(re.fullmatch(pattern, text) for text in texts), texts


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_choice_is_made_of_the_texts_there_are(engine: Engine, compiler: GrammarCompiler, temperature: float) -> None:
    texts = ("yes", "no", "yes, please", 'say "hi"\\\n', "ünï")
    requests = [held(compiler, number, Choice(texts), temperature=temperature) for number in range(24)]
    answers = run(engine, requests)
    chosen = {answer.text for answer in answers}
    assert chosen <= set(texts)
    assert len(chosen) == 1 if temperature == 0.0 else len(chosen) >= 3
    assert {answer.finish for answer in answers} == {FinishReason.STOP}


PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_k": 3},
    {"top_p": 0.5, "temperature": 2.0},
    {"min_p": 0.3, "repetition_penalty": 1.5},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"logprobs": 2, "ignore_eos": True},
    {"min_new_tokens": 300},
)


def test_a_constraint_holds_beside_every_other_parameter(engine: Engine, compiler: GrammarCompiler) -> None:
    requests = [
        held(compiler, number, JsonSchema(json.dumps(SCHEMAS["flat"])), **params)
        for number, params in enumerate(PARAMS)
    ]
    answers = run(engine, requests)
    for text in whole(answers):
        jsonschema.validate(json.loads(text), SCHEMAS["flat"])
    assert len(whole(answers)) == len(PARAMS)


def test_log_probabilities_under_a_constraint_are_the_models_own(engine: Engine, compiler: GrammarCompiler) -> None:
    (answer,) = run(engine, [held(compiler, 0, Choice(("yes",)), logprobs=3)])
    assert len(answer.logprobs) == len(answer.token_ids)
    assert all(entry.logprob <= entry.top[0][1] for entry in answer.logprobs)
    assert any(entry.logprob < entry.top[0][1] for entry in answer.logprobs)


def test_every_completion_fulfils_the_schema_and_is_what_it_is_alone(
    model: LoadedModel, compiler: GrammarCompiler
) -> None:
    constraint = JsonSchema(json.dumps(SCHEMAS["nested"]))
    asked = held(compiler, 1, constraint, n=8, temperature=1.2)
    (together,) = run_completions(engine_of(model), [asked])
    (in_pieces,) = run_completions(engine_of(model, num_slots=512, page_size=16, max_running=3), [asked])
    assert [answer.text for answer in together] == [answer.text for answer in in_pieces]
    texts = whole(together)
    assert len(texts) == 8
    assert len(set(texts)) > 4
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMAS["nested"])


def test_a_stop_string_across_tokens_cuts_every_constrained_completion_where_it_begins(
    model: LoadedModel, compiler: GrammarCompiler
) -> None:
    stop = '", "age'
    asked = held(compiler, 1, Regex(r'\{"name": "[a-z]{1,6}", "age": [0-9]{1,2}\}'), n=6)
    (plain,) = run_completions(engine_of(model), [asked])
    (cut,) = run_completions(engine_of(model), [replace(asked, params=replace(asked.params, stop=(stop,)))])
    assert all(stop in answer.text for answer in plain)
    for whole_text, short in zip(plain, cut, strict=True):
        assert short.finish is FinishReason.STOP
        assert short.text == whole_text.text[: whole_text.text.index(stop)]
        assert short.token_ids == whole_text.token_ids[: len(short.token_ids)]
    assert len(tiny_tokenizer().encode(stop).ids) > 1


def test_free_and_constrained_requests_share_batches_without_touching_each_other(
    model: LoadedModel, compiler: GrammarCompiler
) -> None:
    free = [request(100 + number, PROMPT, params=SamplingParams(max_new_tokens=20, seed=number)) for number in range(4)]
    bound = [held(compiler, number, Regex("[a-z ]{5,20}!")) for number in range(4)]
    mixed = run(engine_of(model), [each for pair in zip(free, bound, strict=True) for each in pair])
    assert [answer.token_ids for answer in mixed[::2]] == [a.token_ids for a in run(engine_of(model), free)]
    assert [answer.token_ids for answer in mixed[1::2]] == [a.token_ids for a in run(engine_of(model), bound)]
