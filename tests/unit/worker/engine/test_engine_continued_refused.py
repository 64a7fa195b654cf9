"""What can never have been begun elsewhere, or has ended there, is refused by name; nobody else notices."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.worker.engine.harness import EOS, VOCAB, Rig, answer, make_request, prompt
from worker.batch import SamplingParams
from worker.engine import Request
from worker.engine.fake_constraint import FakeConstraint
from worker.engine.ports import Continued
from worker.errors import FailureCode


def asked() -> Request:
    """Return a request for four completions of 12 tokens."""
    return make_request(0, prompt(40), params=SamplingParams(max_new_tokens=12, n=4, seed=7, ignore_eos=True))


def saying(request: Request, *tokens: int) -> Request:
    return replace(request, continued=(Continued(0, tokens),))


REFUSED: dict[str, tuple[Callable[[Request], Request], str, str]] = {
    "an index beyond n": (lambda r: replace(r, continued=(Continued(4, (1,)),)), "continued[0].index", "0 to 3"),
    "a negative index": (lambda r: replace(r, continued=(Continued(-1, (1,)),)), "continued[0].index", "-1"),
    "an index twice": (
        lambda r: replace(r, continued=(Continued(1, (1,)), Continued(1, (2,)))),
        "continued[1].index",
        "1 is named twice",
    ),
    "no token": (saying, "continued[0].token_ids", "at least 1"),
    "a token beyond the vocabulary": (lambda r: saying(r, 1, VOCAB), "continued[0].token_ids", f"0 and {VOCAB - 1}"),
    "a negative token": (lambda r: saying(r, -1), "continued[0].token_ids", f"0 and {VOCAB - 1}"),
    "all tokens": (lambda r: saying(r, *range(12)), "continued[0].token_ids", "max_new_tokens 12"),
    "more than all tokens": (lambda r: saying(r, *range(40)), "continued[0].token_ids", "max_new_tokens 12"),
    "an end token": (
        lambda r: saying(replace(r, params=replace(r.params, ignore_eos=False)), 1, EOS),
        "continued[0].token_ids",
        "place 1 of 2",
    ),
    "a stop token": (
        lambda r: saying(replace(r, params=replace(r.params, stop_token_ids=(5,))), 5, 1),
        "continued[0].token_ids",
        "place 0 of 2",
    ),
    "a stop string": (
        lambda r: saying(replace(r, params=replace(r.params, stop=("17",))), 3, 17, 4),
        "continued[0].token_ids",
        "stop string",
    ),
    "a token that the constraint refuses": (
        lambda r: saying(replace(r, constraint=FakeConstraint(VOCAB, 9)), 7, 2),
        "continued[0].token_ids",
        "constraint",
    ),
    "the end of the constraint": (
        lambda r: saying(replace(r, constraint=FakeConstraint(VOCAB, 2)), 7, 1),
        "continued[0].token_ids",
        "constraint",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_go_on_is_refused_by_field_and_limit_and_disturbs_nobody(case: str) -> None:
    spoil, field, limit = REFUSED[case]
    rig = Rig()
    rig.submit(make_request(1, prompt(9)))
    rig.submit(spoil(asked()))
    rig.run()
    failure = rig.failure(0)
    assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENT, field)
    assert limit in failure.message
    assert rig.tokens(1) == answer(prompt(9), 4)
    rig.assert_nothing_is_held()


def test_one_bad_completion_refuses_the_request_and_begins_none_of_it() -> None:
    rig = Rig()
    rig.submit(replace(asked(), continued=(Continued(0, (1, 2)), Continued(1, (3,)), Continued(2, ()))))
    rig.run()
    assert rig.failure(0).field == "continued[2].token_ids"
    assert rig.executor.num_runs == 0


def test_shutting_down_refuses_it_as_any_other() -> None:
    rig = Rig()
    rig.engine.close()
    rig.submit(saying(asked(), 1, 2))
    rig.run()
    assert rig.failure(0).code is FailureCode.SHUTTING_DOWN
