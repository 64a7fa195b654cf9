"""Whatever a schema asks for, and whichever of the allowed tokens are drawn: a whole text fulfils it."""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.tiny_tokenizer import CONTROL_TOKENS, tiny_tokenizer, tiny_tokenizer_json
from worker.engine.constraints import Constraint
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.constraints import ConstraintError, JsonSchema

VOCAB_SIZE = tiny_tokenizer().get_vocab_size()
EOS = CONTROL_TOKENS.index("<|im_end|>")
MAX_TOKENS = 150
PATIENCE_S = 20.0

_number = st.one_of(st.integers(-60, 60), st.integers(-240, 240).map(lambda quarters: quarters / 4))
_values: st.SearchStrategy[Any] = st.sampled_from([1, "a", None, True, 1.5, 'é"\\', [1], {"x": 1}, "b", -3])


def _bounded(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), _number)
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=bounds)


_leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _bounded("integer"),
    _bounded("number"),
    st.fixed_dictionaries(
        {"type": st.just("string"), "maxLength": st.integers(2, 8)}, optional={"minLength": st.integers(0, 4)}
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}]),
    st.lists(_values, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _values.map(lambda value: {"const": value}),
    st.sampled_from(["^a+$", "b", "^[0-9]{2}", "x$", "^(foo|bar)?$", r"^\d+-\d+$", "[^a]", "^.{2,4}$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.sampled_from(["date", "ipv4", "uuid"]).map(lambda name: {"type": "string", "format": name}),
)


def _containers(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from(["a", "b", "é", "x y"]), schemas, max_size=3)
    return st.one_of(
        st.lists(schemas, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.lists(schemas, min_size=2, max_size=2).map(lambda parts: {"allOf": parts}),
        st.builds(_object, properties, st.lists(st.sampled_from(["a", "b"]), unique=True)),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": schemas, "maxItems": st.integers(0, 3)},
            optional={"minItems": st.integers(0, 2), "prefixItems": st.lists(schemas, min_size=1, max_size=2)},
        ),
    )


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": not properties}


_schemas = st.recursive(_leaves, _containers, max_leaves=6)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(tiny_tokenizer_json(), VOCAB_SIZE, (EOS,))
    yield made
    made.close()


def drawn(constraint: Constraint, dice: random.Random) -> str | None:
    """Return a text of tokens drawn at random among those allowed; None for one that has no end soon."""
    state, tokens = constraint.begin(), list[int]()
    while len(tokens) < MAX_TOKENS:
        allowed = np.flatnonzero(np.unpackbits(state.allowed.view(np.uint8), bitorder="little")).tolist()
        token = EOS if EOS in allowed and dice.random() < 0.5 else dice.choice(allowed)
        if token == EOS:
            return tiny_tokenizer().decode(tokens)
        tokens.append(token)
        if not state.accept(token):
            return tiny_tokenizer().decode(tokens)
    return None


@settings(max_examples=300)
@given(schema=_schemas, seed=st.integers(0, 2**32 - 1))
def test_every_whole_text_is_a_document_that_fulfils_the_schema(
    compiler: GrammarCompiler, schema: dict[str, Any], seed: int
) -> None:
    try:
        constraint = compiler.compile(JsonSchema(json.dumps(schema))).result(PATIENCE_S)
    except ConstraintError:
        return
    dice = random.Random(seed)
    for _ in range(4):
        text = drawn(constraint, dice)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
