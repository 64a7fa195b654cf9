"""What an engine owes a request, whatever happened: the answer it would get alone on an empty cache, or a failure."""

import random
from dataclasses import replace
from functools import cache

from tests.unit.worker.engine.harness import EOS, VOCAB, Rig
from worker.engine import FinishReason, Request
from worker.engine.branches import branch_seed
from worker.engine.fake import continuation, prompt_scores
from worker.engine.fake_constraint import FakeConstraint
from worker.engine.ports import Continued
from worker.errors import Failure, FailureCode

MAX_NEW_TOKENS = 24
FAILURES = {FailureCode.CANCELLED, FailureCode.DEADLINE_EXCEEDED, FailureCode.INTERNAL}


def varied(request: Request, seed: int) -> Request:
    """Return `request` as it is, or for several completions, with scores of its prompt, held to a constraint, begun."""
    dice = random.Random(seed)
    n = dice.choice([1, 1, 1, 1, 2, 3, 6])
    scores = dice.choice([None, None, None, None, 0])
    params = replace(request.params, n=n, prompt_logprobs=scores, seed=dice.choice([0, dice.getrandbits(64)]))
    constraint = None
    if dice.random() < 0.2:
        breaks_at = dice.randrange(8) if dice.random() < 0.2 else None
        constraint = FakeConstraint(EOS, length=dice.randrange(1, 12), breaks_at=breaks_at)
    request = replace(request, params=params, constraint=constraint)
    return _begun_elsewhere(request, dice) if dice.random() < 0.2 else request


def _begun_elsewhere(request: Request, dice: random.Random) -> Request:
    """Return `request` with some of its completions to go on from somewhere in the truth, unless they are too short."""
    constraint = request.constraint
    assert constraint is None or isinstance(constraint, FakeConstraint)
    most = min(request.params.max_new_tokens, MAX_NEW_TOKENS if constraint is None else constraint.length) - 1
    if constraint is not None and constraint.breaks_at is not None:
        most = min(most, constraint.breaks_at)
    if most < 1:
        return request
    indices = dice.sample(range(request.params.n), dice.randint(1, request.params.n))
    continued = [Continued(index, tuple(_truth(request, index)[: dice.randint(1, most)])) for index in indices]
    return replace(request, continued=tuple(continued))


def inherited(request: Request, index: int) -> tuple[int, ...]:
    """Return the tokens that a completion came with."""
    return next((each.token_ids for each in request.continued if each.index == index), ())


def assert_true_answers(rig: Rig, requests: dict[int, Request]) -> None:
    """Every request, by its number, got one end of each completion, and up to it the true tokens and counts."""
    for number, request in requests.items():
        _assert_true_answer(rig, number, request)
    ends = [output for outputs in rig.outputs.values() for output in outputs if output.finish is not None]
    assert len(rig.observer.outcomes) == len(ends)


def _assert_true_answer(rig: Rig, number: int, request: Request) -> None:
    begun = {output.index for output in rig.outputs[0, number]}
    failed = any(isinstance(rig.finish(number, index), Failure) for index in begun)
    expected = {each.index for each in request.continued} or set(range(request.params.n))
    assert begun <= expected
    assert failed or begun == expected
    for index in begun:
        _assert_true_completion(rig, number, index, request)
    tokens = tuple(request.key.token_ids.tolist())
    if request.continued:
        assert rig.scores(number) == []
    elif request.params.prompt_logprobs is not None:
        scores = rig.scores(number)
        assert scores == _scores(tokens)[: len(scores)]
        assert len(scores) == len(tokens) - 1 or not rig.tokens(number)
    for index in begun if request.continued else begun & {0}:
        if not rig.tokens(number, index):
            continue
        admission = rig.admission(number, index)
        assert admission.prompt_tokens == len(request.key) + len(inherited(request, index))
        assert 0 <= admission.hit.total < admission.prompt_tokens
        assert min(admission.hit.device, admission.hit.host, admission.hit.storage) >= 0


def _assert_true_completion(rig: Rig, number: int, index: int, request: Request) -> None:
    constraint, finish, tokens = request.constraint, rig.finish(number, index), rig.tokens(number, index)
    assert constraint is None or isinstance(constraint, FakeConstraint)
    had = len(inherited(request, index))
    assert tokens == _truth(request, index)[had : had + len(tokens)]
    if isinstance(finish, Failure):
        breaks = constraint is not None and constraint.breaks_at is not None
        assert finish.code in (FAILURES | {FailureCode.INVALID_ARGUMENT} if breaks else FAILURES)
        return
    longest = request.params.max_new_tokens
    whole = longest + 1 if constraint is None else constraint.length
    assert had + len(tokens) == min(longest, whole)
    assert finish is (FinishReason.STOP if whole <= longest else FinishReason.LENGTH)


def _truth(request: Request, index: int) -> list[int]:
    seed = branch_seed(request.params.seed, index)
    return _expected(tuple(request.key.token_ids.tolist()), seed, request.constraint is not None)


@cache
def _expected(tokens: tuple[int, ...], seed: int, is_constrained: bool) -> list[int]:
    constraint = FakeConstraint(EOS, length=MAX_NEW_TOKENS) if is_constrained else None
    return continuation(tokens, MAX_NEW_TOKENS, VOCAB, seed=seed, constraint=constraint)


@cache
def _scores(tokens: tuple[int, ...]) -> list[object]:
    return [*prompt_scores(tokens)]
