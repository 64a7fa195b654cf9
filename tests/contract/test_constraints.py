"""What the engine asks of a constraint, fulfilled by the one it is tested with and by grammars."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.fakes.tiny_tokenizer import CONTROL_TOKENS, tiny_tokenizer, tiny_tokenizer_json
from worker.engine.constraints import Constraint, ConstraintFailed, ConstraintState, allows, leaves_more, pack
from worker.engine.fake_constraint import FakeConstraint
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.constraints import Choice, JsonSchema, Regex

VOCAB_SIZE = tiny_tokenizer().get_vocab_size() + 5
EOS = CONTROL_TOKENS.index("<|im_end|>")

CONSTRAINTS = ("fake", "schema", "regex", "choice")


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(tiny_tokenizer_json(), VOCAB_SIZE, (EOS,))
    yield made
    made.close()


@pytest.fixture(params=CONSTRAINTS)
def constraint(request: pytest.FixtureRequest, compiler: GrammarCompiler) -> Constraint:
    make: dict[str, Callable[[], Constraint]] = {
        "fake": lambda: FakeConstraint(VOCAB_SIZE, length=9, end_token_ids=(EOS,)),
        "schema": lambda: compiler.compile(JsonSchema('{"enum": ["abc", [1, 2], {"a": null}]}')).result(20),
        "regex": lambda: compiler.compile(Regex("[a-d]{3,6}x?")).result(20),
        "choice": lambda: compiler.compile(Choice(("yes", "yes, please"))).result(20),
    }
    return make[request.param]()


def allowed(state: ConstraintState) -> list[int]:
    return np.flatnonzero(np.unpackbits(state.allowed.view(np.uint8), bitorder="little")).tolist()


def walk(state: ConstraintState) -> list[int]:
    """Take the last allowed token that is no end until nothing may follow; return them all."""
    tokens = []
    more = True
    while more and (going_on := [token for token in allowed(state) if token != EOS]):
        tokens.append(going_on[-1])
        more = state.accept(going_on[-1])
    return tokens


def test_what_is_allowed_covers_the_vocabulary_and_nothing_beyond(constraint: Constraint) -> None:
    state = constraint.begin()
    assert state.allowed.dtype == np.uint32
    assert len(state.allowed) == -(-VOCAB_SIZE // 32)
    assert allowed(state)
    assert max(allowed(state)) < VOCAB_SIZE


def test_a_text_ends_where_nothing_may_follow(constraint: Constraint) -> None:
    tokens = walk(constraint.begin())
    assert 0 < len(tokens) < 500
    assert walk(constraint.begin()) == tokens


def test_what_was_handed_out_stays_as_it_was(constraint: Constraint) -> None:
    state = constraint.begin()
    before, copied = state.allowed, state.allowed.copy()
    walk(state)
    assert np.array_equal(before, copied)


def test_a_state_goes_on_from_the_tokens_it_is_begun_with(constraint: Constraint) -> None:
    tokens = walk(constraint.begin())
    state = constraint.begin()
    for place, token in enumerate(tokens[:-1], 1):
        assert state.accept(token)
        assert np.array_equal(constraint.begin(tokens[:place]).allowed, state.allowed)


def test_nothing_begins_with_tokens_behind_which_nothing_may_follow(constraint: Constraint) -> None:
    tokens = walk(constraint.begin())
    more, last = True, constraint.begin()
    for token in tokens:
        more = last.accept(token)
    if more:  # an end token may follow, or is all that may
        assert np.array_equal(constraint.begin(tokens).allowed, last.allowed)
        return
    with pytest.raises(ConstraintFailed):
        constraint.begin(tokens)
    with pytest.raises(ConstraintFailed):
        constraint.begin([*tokens, tokens[-1]])


def test_a_token_that_is_not_allowed_fails_the_state_and_no_other(constraint: Constraint) -> None:
    broken, sound = constraint.begin(), constraint.begin()
    forbidden = min(set(range(VOCAB_SIZE)) - set(allowed(broken)) - {EOS})
    with pytest.raises(ConstraintFailed):
        broken.accept(forbidden)
    assert walk(sound) == walk(constraint.begin())
    with pytest.raises(ConstraintFailed):
        constraint.begin([forbidden])


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 500])
def test_packed_bits_say_which_tokens_are_allowed(vocab_size: int) -> None:
    tokens = sorted({0, vocab_size // 2, vocab_size - 1})
    packed = pack(tokens, vocab_size)
    assert [token for token in range(vocab_size) if allows(packed, token)] == tokens
    assert not leaves_more(packed, tokens)
    assert leaves_more(packed, tokens[1:])
    assert all(allows(None, token) for token in tokens)
