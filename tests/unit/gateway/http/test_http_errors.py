"""How errors are told over HTTP: every one has its row, and what clients do with it helps."""

from collections.abc import Iterator

import pytest

import gateway.errors
import gateway.http.errors
from gateway.errors import (
    DeadlineExceededError,
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
)
from gateway.http.errors import ROWS, MethodNotAllowedError, refusal_of
from gateway.rpc.status import code_of


def error_classes() -> Iterator[type[GatewayError]]:
    for module in (gateway.errors, gateway.http.errors):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, GatewayError):
                yield value


def test_every_class_of_errors_has_its_row() -> None:
    assert set(ROWS) == set(error_classes())


@pytest.mark.parametrize("kind", [each for each in ROWS if each.__module__ == "gateway.errors"])
def test_metrics_name_an_error_as_grpc_does(kind: type[GatewayError]) -> None:
    error = kind.__new__(kind)  # the status depends on nothing but the class
    assert ROWS[kind].code == code_of(error).name


def test_an_error_of_a_class_made_later_is_told_as_its_nearest_kin() -> None:
    class Later(UnavailableError):
        pass

    assert refusal_of(Later("not now")).status == 503


def test_the_first_violation_is_the_param_and_the_message_names_all() -> None:
    refusal = refusal_of(InvalidRequestError([Violation("n", "is 0"), Violation("stop", "is long")]))
    assert refusal.document() == {
        "error": {
            "message": "n: is 0; stop: is long",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
        }
    }


def test_a_refused_key_has_the_code_that_openai_gives_it() -> None:
    refusal = refusal_of(UnauthenticatedError("no"))
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert ("www-authenticate", "Bearer") in refusal.headers


@pytest.mark.parametrize(
    ("limit", "kind"),
    [("tokens_per_minute", "tokens"), ("requests_per_minute", "requests"), ("max_concurrent_requests", "requests")],
)
def test_a_limit_says_which_and_when_to_come_back(limit: str, kind: str) -> None:
    refusal = refusal_of(QuotaExceededError("over", limit=limit, value=5, retry_after_s=1.2))
    assert (refusal.status, refusal.kind, refusal.code) == (429, kind, "rate_limit_exceeded")
    assert dict(refusal.headers) == {"retry-after": "2", "retry-after-ms": "1200"}


def test_what_can_never_fit_is_not_to_be_tried_again() -> None:
    never = refusal_of(QuotaExceededError("over", limit="tokens_per_minute", value=5, retry_after_s=None))
    assert never.code == "quota_exceeded"
    for refusal in (never, refusal_of(DeadlineExceededError("late"))):
        assert dict(refusal.headers) == {"x-should-retry": "false"}


def test_unavailable_always_says_when_to_come_back() -> None:
    assert dict(refusal_of(UnavailableError("away")).headers)["retry-after"] == "1"
    known = refusal_of(UnavailableError("away", retry_after_s=0.02))
    assert dict(known.headers) == {"retry-after": "1", "retry-after-ms": "20"}


def test_a_missing_model_is_named_as_openai_does() -> None:
    refusal = refusal_of(NotFoundError("model", "tiny:pirate"))
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")


def test_a_wrong_method_says_which_is_right() -> None:
    assert ("allow", "POST") in refusal_of(MethodNotAllowedError("GET", "POST")).headers


def test_no_message_grows_without_bound() -> None:
    refusal = refusal_of(InvalidRequestError([Violation("x" * 1000, "y" * 10_000)]))
    assert len(refusal.message) <= 2048
    assert refusal.param is not None
    assert len(refusal.param) <= 256
