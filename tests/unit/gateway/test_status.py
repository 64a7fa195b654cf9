"""Errors become statuses with the details that programs read."""

import base64
from typing import TypeVar
from urllib.parse import quote

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc import StatusCode

from gateway import errors
from gateway.errors import GatewayError, InvalidRequestError, NotFoundError, UnavailableError, Violation
from gateway.rpc.status import DOMAIN, code_of, status_of

DetailT = TypeVar("DetailT", bound=Message)


def detail(error: GatewayError, kind: type[DetailT]) -> DetailT | None:
    for packed in status_of(error).details:
        if packed.Is(kind.DESCRIPTOR):
            unpacked = kind()
            packed.Unpack(unpacked)
            return unpacked
    return None


def all_errors() -> list[GatewayError]:
    violation = Violation("field", "is wrong")
    return [
        errors.UnauthenticatedError("m"),
        InvalidRequestError([violation]),
        NotFoundError("model", "x"),
        errors.AlreadyExistsError("m"),
        errors.PermissionDeniedError("m"),
        errors.FailedPreconditionError("m"),
        errors.QuotaExceededError("m", limit="tokens_per_minute", value=7, retry_after_s=1.5),
        errors.AdapterChangedError(),
        errors.NoWorkerError("m"),
        errors.StreamLostError(cause="lost", why="adapter", worker="w", sent_tokens=3, moves=1),
        UnavailableError("m"),
        errors.OverloadedError("m"),
        errors.DeadlineExceededError("m"),
        errors.CancelledRequestError("m"),
        errors.InternalError("m"),
    ]


def kinds(base: type[GatewayError]) -> set[type[GatewayError]]:
    own = {kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__}
    return own.union(*(kinds(kind) for kind in own))


def test_every_kind_of_error_has_a_code_and_only_faults_of_ours_are_internal() -> None:
    assert {type(error) for error in all_errors()} == kinds(GatewayError)
    internal = [type(error) for error in all_errors() if code_of(error) is StatusCode.INTERNAL]
    assert internal == [errors.InternalError]


def test_kinds_that_share_a_code_differ_in_their_reason() -> None:
    told = [(code_of(error), error.reason) for error in all_errors()]
    assert len(set(told)) == len(told)


def test_a_quota_says_which_limit_it_was_and_when_to_come_again() -> None:
    error = errors.QuotaExceededError("m", limit="tokens_per_minute", value=7, retry_after_s=1.5)
    failure, info = detail(error, error_details_pb2.QuotaFailure), detail(error, error_details_pb2.ErrorInfo)
    retry = detail(error, error_details_pb2.RetryInfo)
    assert failure is not None
    assert info is not None
    assert retry is not None
    assert [violation.subject for violation in failure.violations] == ["tokens_per_minute"]
    assert dict(info.metadata) == {"limit": "tokens_per_minute", "value": "7"}
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: type(error).__name__)
def test_every_error_carries_a_reason_for_programs(error: GatewayError) -> None:
    info = detail(error, error_details_pb2.ErrorInfo)
    assert info is not None
    assert info.domain == DOMAIN
    assert info.reason
    assert info.reason == info.reason.upper()
    assert status_of(error).code == code_of(error).value[0]


def test_violations_name_field_and_fault() -> None:
    error = InvalidRequestError([Violation("a.b", "is 3; must be 1"), Violation("c", "is missing")])
    found = detail(error, error_details_pb2.BadRequest)
    assert found is not None
    assert [(v.field, v.description) for v in found.field_violations] == [
        ("a.b", "is 3; must be 1"),
        ("c", "is missing"),
    ]
    assert "a.b" in status_of(error).message


def test_a_retry_delay_is_there_only_when_it_is_known() -> None:
    assert detail(UnavailableError("m"), error_details_pb2.RetryInfo) is None
    known = detail(UnavailableError("m", retry_after_s=1.5), error_details_pb2.RetryInfo)
    assert known is not None
    assert known.retry_delay.ToTimedelta().total_seconds() == 1.5


def test_the_status_fits_into_headers_whatever_the_client_sent() -> None:
    many = InvalidRequestError([Violation(f"sampling.stop[{i}]" + "ü" * 500, "🙂" * 5000) for i in range(1000)])
    status = status_of(many)
    on_the_wire = len(quote(status.message)) + len(base64.b64encode(status.SerializeToString()))
    assert on_the_wire < 8000
    found = detail(many, error_details_pb2.BadRequest)
    assert found is not None
    assert found.field_violations[-1].description.endswith("more violations")
    assert len(NotFoundError("model", "m" * 100_000).message) < 120
