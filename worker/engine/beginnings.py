"""From a request to what it begins with: the sequence that leads, or all of those that had begun elsewhere."""

from worker.engine.constraints import ConstraintFailed
from worker.engine.limits import ModelLimits, end_token_ids
from worker.engine.ports import Request
from worker.engine.sequence import Sequence
from worker.errors import Failure, FailureCode


def begin(request: Request, order: int, now: float, limits: ModelLimits) -> tuple[Sequence, ...] | Failure:
    """Return the sequences of a request that no limit refuses, the first of its completions with this order.

    A Failure where one is to go on that its constraint does not let come so far, or any further.
    """
    ends = end_token_ids(request, limits)
    if not request.continued:
        return (Sequence(request, order, now, ends),)
    begun = []
    for place, each in enumerate(request.continued):
        try:
            begun.append(Sequence(request, order + each.index, now, ends, each.index, each.token_ids))
        except ConstraintFailed as error:
            return has_ended(place, f"the constraint does not let these {len(each.token_ids)} tokens go on: {error}")
    return tuple(begun)


def has_ended(place: int, message: str) -> Failure:
    """Return why the completion at this place of those that go on can't."""
    return Failure(FailureCode.INVALID_ARGUMENT, message, f"continued[{place}].token_ids")
