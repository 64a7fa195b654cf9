"""What an engine owes a request, whatever happened: the answer it would get alone on an empty cache, or a failure."""

from functools import cache

from tests.unit.worker.engine.harness import VOCAB, Rig
from worker.engine import FinishReason, Request
from worker.engine.fake import continuation
from worker.errors import Failure, FailureCode

MAX_NEW_TOKENS = 24
FAILURES = {FailureCode.CANCELLED, FailureCode.DEADLINE_EXCEEDED, FailureCode.INTERNAL}


def assert_true_answers(rig: Rig, requests: dict[int, Request]) -> None:
    """Every request, by its number, got one end, and up to it the true tokens and counts that add up."""
    for number, request in requests.items():
        _assert_true_answer(rig, number, request)
    assert len(rig.observer.outcomes) == len(requests)


def _assert_true_answer(rig: Rig, number: int, request: Request) -> None:
    finish = rig.finish(number)
    tokens = rig.tokens(number)
    assert tokens == _expected(tuple(request.key.token_ids.tolist()))[: len(tokens)]
    if finish is FinishReason.LENGTH:
        assert len(tokens) == request.params.max_new_tokens
    else:
        assert isinstance(finish, Failure)
        assert finish.code in FAILURES
    if tokens:
        admission = rig.admission(number)
        assert admission.prompt_tokens == len(request.key)
        assert 0 <= admission.hit.total < len(request.key)
        assert min(admission.hit.device, admission.hit.host, admission.hit.storage) >= 0


@cache
def _expected(tokens: tuple[int, ...]) -> list[int]:
    return continuation(tokens, MAX_NEW_TOKENS, VOCAB)
