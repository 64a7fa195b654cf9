"""What a constraint lets through, what is refused, and that neither takes long."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes.tiny_tokenizer import CONTROL_TOKENS, tiny_tokenizer, tiny_tokenizer_json
from worker.engine.constraints import Constraint, ConstraintFailed, ConstraintState
from worker.grammar.compiler import MAX_BYTES, GrammarCompiler
from worker.grammar.constraints import Choice, ConstraintError, JsonSchema, Regex, TextConstraint

VOCAB_SIZE = tiny_tokenizer().get_vocab_size() + 9  # padded, as models' are
EOS = CONTROL_TOKENS.index("<|im_end|>")
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(tiny_tokenizer_json(), VOCAB_SIZE, (EOS,))
    yield made
    made.close()


def compiled(compiler: GrammarCompiler, constraint: TextConstraint) -> Constraint:
    return compiler.compile(constraint).result(PATIENCE_S)


def allowed(state: ConstraintState) -> set[int]:
    bits = np.unpackbits(state.allowed.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def reads(compiler: GrammarCompiler, constraint: TextConstraint, text: str) -> bool:
    """Whether `text` may be a whole completion, token by token."""
    state = compiled(compiler, constraint).begin()
    tokens = tiny_tokenizer().encode(text).ids
    for place, token_id in enumerate(tokens, 1):
        if token_id not in allowed(state):
            return False
        if not state.accept(token_id):
            return place == len(tokens)
    return EOS in allowed(state)


PERSON = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    )
)


@pytest.mark.parametrize(
    ("constraint", "text", "fits"),
    [
        (PERSON, '{"name": "Ada", "age": 36}', True),
        (PERSON, '{"name":"Ada","age":36}', True),
        (JsonSchema("true"), "[1, null]", True),
        (JsonSchema('{"exclusiveMinimum":0,"maximum":1}'), "0.5", True),
        (JsonSchema('{"exclusiveMinimum":0,"maximum":1}'), "0", False),
        (JsonSchema('[{"exclusiveMinimum":0},{"maximum":0.5}]'.join(['{"prefixItems":', "}"])), "[7, 0.25]", True),
        (PERSON, '{"name": "Ada"}', False),
        (PERSON, '{"name": "Ada", "age": "36"}', False),
        (PERSON, '{"name": "Ada", "age": 36}!', False),
        (Regex(r"[0-9]{3}-[0-9]{4}"), "555-0199", True),
        (Regex(r"[0-9]{3}-[0-9]{4}"), "555-019", False),
        (Regex(r"^a/b\nc$"), "a/b\nc", True),
        (Regex("a\nb"), "a\nb", True),
        (Regex(r"\p{L}+"), "ünï", True),
        (Choice(("yes", "yes please", "no")), "yes", True),
        (Choice(("yes", "yes please", "no")), "yes please", True),
        (Choice(("yes", "yes please", "no")), "ye", False),
        (Choice(('q"uo\\te\n', "/x/ | y", "%ignore \u2028")), 'q"uo\\te\n', True),
        (Choice(("\x00\x1f\x7f\x80", "\x7f\\\x7f")), "\x00\x1f\x7f\x80", True),
        (Choice(("\x00\x1f\x7f\x80", "\x7f\\\x7f")), "\x7f\\\x7f", True),
        (Choice(('q"uo\\te\n', "/x/ | y", "%ignore \u2028")), "/x/ | y", True),
        (Choice(('q"uo\\te\n', "/x/ | y", "%ignore \u2028")), "%ignore \u2028", True),
    ],
)
def test_text_is_let_through_exactly_where_it_fulfils_the_constraint(
    compiler: GrammarCompiler, constraint: TextConstraint, text: str, fits: bool
) -> None:
    assert reads(compiler, constraint, text) is fits


def test_an_end_token_is_allowed_only_where_the_text_is_whole(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, Regex("ab?")).begin()
    a, b = tiny_tokenizer().encode("a").ids[0], tiny_tokenizer().encode("b").ids[0]
    assert EOS not in allowed(state)
    assert state.accept(a)
    assert allowed(state) == {EOS, b}
    assert not state.accept(b)


def test_control_tokens_never_spell_text(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, Regex(r".*")).begin()
    assert allowed(state).isdisjoint(set(range(len(CONTROL_TOKENS))) - {EOS})
    assert max(allowed(state)) < tiny_tokenizer().get_vocab_size()


def test_states_of_one_constraint_do_not_touch_each_other(compiler: GrammarCompiler) -> None:
    constraint = compiled(compiler, Regex("[ab]{3}"))
    a = tiny_tokenizer().encode("a").ids[0]
    first, second = constraint.begin(), constraint.begin()
    before = allowed(second)
    for more in (True, True, False):
        assert first.accept(a) is more
    assert allowed(second) == before
    assert allowed(constraint.begin()) == before


def test_a_state_is_rebuilt_from_its_tokens(compiler: GrammarCompiler) -> None:
    constraint = compiled(compiler, PERSON)
    tokens = tiny_tokenizer().encode('{"name": "A').ids
    state = constraint.begin()
    for token_id in tokens:
        state.accept(token_id)
    assert allowed(constraint.begin(tokens)) == allowed(state)


def test_a_token_that_does_not_fit_fails_that_state_only(compiler: GrammarCompiler) -> None:
    constraint = compiled(compiler, Regex("a+"))
    a, b = tiny_tokenizer().encode("a").ids[0], tiny_tokenizer().encode("b").ids[0]
    broken, whole = constraint.begin(), constraint.begin()
    with pytest.raises(ConstraintFailed):
        broken.accept(b)
    assert whole.accept(a)


def test_one_that_grows_too_complex_on_the_way_says_which_limit_it_met(compiler: GrammarCompiler) -> None:
    constraint = compiled(compiler, Regex(".*a.{5000}"))
    letters = [tiny_tokenizer().encode(letter).ids[0] for letter in "abcaadba"]
    tokens = [letters[place * place % 8] for place in range(4000)]
    with pytest.raises(ConstraintFailed, match="too many"):
        constraint.begin(tokens)
    state = compiled(compiler, Regex(".*a.{5001}")).begin()  # what has met its limit once does not begin again
    with pytest.raises(ConstraintFailed, match="too many"):
        all(map(state.accept, tokens))


def test_a_token_that_is_refused_is_quoted_nowhere(compiler: GrammarCompiler) -> None:
    constraint = compiled(compiler, Regex("a+"))
    secret = tiny_tokenizer().encode("b").ids
    for reject in (lambda: constraint.begin(secret), lambda: constraint.begin().accept(secret[0])):
        with pytest.raises(ConstraintFailed) as raised:
            reject()
        assert str(raised.value) == "a token does not fit: InternalError"


def test_patterns_and_divisors_of_values_apart_are_as_many_as_one_likes(compiler: GrammarCompiler) -> None:
    texts = {f"t{letter}": {"type": "string", "pattern": f".*{letter}.{{5}}x.*"} for letter in "abcdefghijklmnop"}
    numbers = {f"n{number}": {"type": "number", "multipleOf": number} for number in range(1, 101)}
    alternatives = {"anyOf": [{"type": "string", "pattern": f"^{letter}+$"} for letter in "abcdefghijklmnop"]}
    schema = {"type": "object", "properties": texts | numbers | {"x": alternatives}}
    assert allowed(compiled(compiler, JsonSchema(json.dumps(schema))).begin())


def test_numbers_are_compared_in_time_that_grows_as_their_number_does(compiler: GrammarCompiler) -> None:
    bounds = [{"minimum": number + 0.5, "exclusiveMaximum": -number} for number in range(1, 5000)]
    began = time.monotonic()
    compiled(compiler, JsonSchema(json.dumps({"allOf": [{"type": "boolean"}], "$defs": {"x": bounds}})))
    assert time.monotonic() - began < PATIENCE_S / 2


def test_of_long_constraints_fewer_are_kept(compiler: GrammarCompiler) -> None:
    long = [Choice((letter * (MAX_BYTES - 1),)) for letter in "abc"]
    first, *_ = [compiled(compiler, each) for each in long]
    assert compiled(compiler, long[-1]) is compiled(compiler, long[-1])
    assert compiled(compiler, long[0]) is not first


def test_a_text_that_the_vocabulary_cannot_go_on_with_fails_that_state() -> None:
    tokenizer = json.loads(tiny_tokenizer_json())
    model = tokenizer["model"]
    model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if "z" not in token}
    model["merges"] = [pair for pair in model["merges"] if "z" not in "".join(pair)]
    compiler = GrammarCompiler(json.dumps(tokenizer).encode(), VOCAB_SIZE, (EOS,))
    state = compiled(compiler, Regex("az")).begin()
    with pytest.raises(ConstraintFailed, match="no token can follow"):
        state.accept(tiny_tokenizer().encode("a").ids[0])
    compiler.close()


def test_the_same_constraint_is_compiled_once(compiler: GrammarCompiler) -> None:
    assert compiled(compiler, Regex("same")) is compiled(compiler, Regex("same"))
    assert compiled(compiler, Regex("same")) is not compiled(compiler, Regex("other"))


def all_of(parts: Iterable[dict[str, Any]]) -> JsonSchema:
    return JsonSchema(json.dumps({"allOf": list(parts)}))


def by_reference(parts: list[dict[str, Any]]) -> JsonSchema:
    """Each part refers to the next one."""
    chain = {f"{place}": part | {"$ref": f"#/$defs/{place + 1}"} for place, part in enumerate(parts)}
    return JsonSchema(json.dumps({"$ref": "#/$defs/0", "$defs": chain | {f"{len(parts)}": {}}}))


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "true" + "}" * depth


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (JsonSchema('{"type":"string","enum":[]}'), "Unsatisfiable"),
        (JsonSchema("false"), "no text fulfils it"),
        (JsonSchema('{"allOf":[{"type":"string"},{"type":"integer"}]}'), "Unsatisfiable"),
        (JsonSchema('{"type":"integer","minimum":5,"maximum":3}'), "Unsatisfiable"),
        (JsonSchema('{"type":"object","properties":{"a":false},"required":["a"]}'), "Unsatisfiable"),
        (JsonSchema('{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}'), "no text fulfils it"),
        (JsonSchema('{"$ref":"https://example.com/schema.json"}'), "compiled"),
        (JsonSchema('{"type":"array","uniqueItems":true}'), "uniqueItems"),
        (JsonSchema('{"x-guidance":{"lenient":true},"type":"array","uniqueItems":true}'), "uniqueItems"),
        (JsonSchema('{"exclusiveMinimum":0,"maximum":0.5}'), "exclusiveMinimum 0 together with maximum 0.5"),
        (JsonSchema('{"type":"array","items":{"minimum":-1.5,"exclusiveMaximum":-1}}'), "exclusiveMaximum -1"),
        (JsonSchema('{"allOf":[{"exclusiveMinimum":0},{"maximum":0.5}]}'), "exclusiveMinimum 0"),
        (JsonSchema(f'{{"minimum":1{"0" * 400}}}'), "out of range"),
        (all_of({"pattern": f".*{a}.{{5}}{b}.*"} for a in "abcdefgh" for b in "xyz"), "patterns and formats at once"),
        (by_reference([{"pattern": f".*{a}.{{5}}x.*"} for a in "abcdefghijkl"]), "patterns and formats at once"),
        (all_of({"anyOf": [{"pattern": f".*{a}.{{5}}x.*"}, {}]} for a in "abcdefghijkl"), "patterns and formats"),
        (all_of({"$ref": f"#{a}", "$defs": {a: {"$anchor": a, "pattern": a}}} for a in "abcdefghi"), "patterns and"),
        (all_of({"multipleOf": divisor} for divisor in (97, 101, 103)), "multipleOf are too large"),
        (JsonSchema(json.dumps({"properties": {f"p{number}": {} for number in range(600)}})), "items; max is"),
        (JsonSchema('{"multipleOf":10.0003}'), "multipleOf are too large"),
        (JsonSchema(json.dumps({"patternProperties": {f"^{a}{b}": {} for a in "abcdef" for b in "uvwxyz"}})), "36 pat"),
        (JsonSchema('{"type":'), "not valid JSON"),
        (JsonSchema(""), "not valid JSON"),
        (JsonSchema("[]"), "must be a JSON object"),
        (JsonSchema(nested(150)), "recursion limit"),
        (JsonSchema(nested(9000)), "nested too deeply"),
        (JsonSchema("true" + " " * (10 << 20)), f"at most {MAX_BYTES}"),
        (Regex("[0-9"), "unclosed character class"),
        (Regex("(?=a)b"), "look-around"),
        (Regex(r"(a)\1"), "backreferences"),
        (Regex(r"[^\s\S]"), "no text fulfils it"),
        (Regex(""), "none but the empty one"),
        (Regex("(" * 100_000 + "a" + ")" * 100_000), "compiled"),
        (Regex("x" * (10 << 20)), f"at most {MAX_BYTES}"),
        (Choice(("x" * MAX_BYTES, "y")), f"at most {MAX_BYTES}"),
    ],
)
def test_what_cannot_be_held_to_is_refused_with_its_reason(
    compiler: GrammarCompiler, constraint: TextConstraint, message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(ConstraintError, match=message) as refused:
        compiled(compiler, constraint)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("(a{1,1000}){1,1000}"),
        Regex("((a{1,1000}){1,1000}){1,1000}"),
        Regex(".*a.{5000}"),
        Regex(r"[\p{L}]{20000}x"),
        JsonSchema('{"type":"array","minItems":10000000,"items":{"type":"string","maxLength":1000000}}'),
        JsonSchema('{"type":"string","pattern":"^(a{1,1000}){1,1000}$"}'),
        JsonSchema(json.dumps({"anyOf": [{"type": "string", "pattern": f".*{i}.{{99}}"} for i in range(300)]})),
        Choice(tuple(f"{i} {'x' * 500}" for i in range(400))),
    ],
)
def test_what_would_explode_is_refused_or_held_to_within_bounds(
    compiler: GrammarCompiler, constraint: TextConstraint
) -> None:
    began = time.monotonic()
    try:
        state = compiled(compiler, constraint).begin()
        for _ in range(200):
            if not state.accept(min(allowed(state) - {EOS})):
                break
    except (ConstraintError, ConstraintFailed):
        pass
    assert time.monotonic() - began < PATIENCE_S / 2


def test_a_model_without_an_end_token_can_be_held_to_nothing() -> None:
    compiler = GrammarCompiler(tiny_tokenizer_json(), VOCAB_SIZE, ())
    with pytest.raises(ConstraintError, match="end-of-sequence"):
        compiled(compiler, Regex("a"))
    compiler.close()


def test_a_tokenizer_that_cannot_be_read_refuses_constraints_only() -> None:
    compiler = GrammarCompiler(b"{}", VOCAB_SIZE, (EOS,))
    with pytest.raises(ConstraintError, match="tokenizer"):
        compiled(compiler, Regex("a"))
    compiler.close()
