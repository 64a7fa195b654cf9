"""What a worker says of a sequence that it does not finish, and whether another worker may do better."""

import pytest

from gateway.dispatch.verdicts import Fault, lost, verdict_on
from gateway.errors import (
    AdapterChangedError,
    CancelledRequestError,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from radixgate.v1 import worker_pb2


def error(
    code: "worker_pb2.SequenceErrorCode.ValueType", message: str = "no", field: str = ""
) -> worker_pb2.SequenceError:
    return worker_pb2.SequenceError(code=code, message=message, field=field)


@pytest.mark.parametrize(
    ("code", "kind", "fault"),
    [
        (worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, NotFoundError, None),
        (worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED, DeadlineExceededError, None),
        (worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED, CancelledRequestError, None),
        (worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, InvalidRequestError, None),
        (worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, OverloadedError, Fault.OVERLOADED),
        (worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN, UnavailableError, Fault.SHUTTING_DOWN),
    ],
)
def test_a_verdict_keeps_its_meaning_and_its_words(
    code: "worker_pb2.SequenceErrorCode.ValueType", kind: type[Exception], fault: Fault | None
) -> None:
    verdict = verdict_on(error(code, "because of the limit of 7"))
    assert type(verdict.error) is kind
    assert "because of the limit of 7" in verdict.error.message
    assert verdict.fault is fault


def test_an_invalid_argument_names_the_field() -> None:
    verdict = verdict_on(error(worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, "is too much", "sampling.top_k"))
    assert isinstance(verdict.error, InvalidRequestError)
    assert verdict.error.violations[0].field == "sampling.top_k"
    assert not verdict.refuses_what_was_begun


def test_what_was_begun_and_is_refused_is_no_fault_of_the_client() -> None:
    code = worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT
    assert verdict_on(error(code, "no", "continued[0].token_ids")).refuses_what_was_begun


def test_an_adapter_that_is_gone_has_changed_meanwhile() -> None:
    verdict = verdict_on(error(worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, "no", "adapter"))
    assert isinstance(verdict.error, AdapterChangedError)
    assert verdict.fault is None


@pytest.mark.parametrize("code", [worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL, worker_pb2.SEQUENCE_ERROR_CODE_UNSPECIFIED])
def test_a_workers_inner_troubles_stay_inside(code: "worker_pb2.SequenceErrorCode.ValueType") -> None:
    verdict = verdict_on(error(code, "/secret/path exploded"))
    assert isinstance(verdict.error, InternalError)
    assert "secret" not in verdict.error.message
    assert verdict.fault is Fault.FAILED


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.SILENT, Fault.STALLED])
def test_a_worker_that_is_gone_is_named_with_what_became_of_it(fault: Fault) -> None:
    verdict = lost("127.0.0.1:1", fault)
    assert (verdict.error.reason, verdict.fault) == ("WORKER_LOST", fault)
    assert verdict.error.metadata == {"worker": "127.0.0.1:1", "cause": fault.value}
