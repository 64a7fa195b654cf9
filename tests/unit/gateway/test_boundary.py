"""What the boundary makes of a write that fails: a client that has gone, and no fault of the gateway."""

import asyncio
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from gateway.config import GatewayLimits
from gateway.errors import DeadlineExceededError
from gateway.identity.callers import Caller, Credentials
from gateway.identity.stores import Tenant
from gateway.policy import Terms
from gateway.rpc.boundary import Boundary
from gateway.rpc.inference import InferenceServicer
from gateway.rpc.journal import EndedCall
from radixgate.v1 import inference_pb2
from tests.fakes.gateway_stack import RecordingObserver


class Anybody:
    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        return Caller(Tenant("acme", "", 1.0, 1000), Terms(), "key 1", arrived_at)


class GoneClient:
    """A call's context once its client has gone: whatever is sent fails."""

    def __init__(self, remaining_s: float | None) -> None:
        self._remaining_s = remaining_s

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def time_remaining(self) -> float | None:
        return self._remaining_s

    def cancelled(self) -> bool:
        return False

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, message: object) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    async def abort(self, *status: object) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


class Details:
    method = "/p.Service/Method"
    invocation_metadata = ()


class Journal:
    def __init__(self) -> None:
        self.codes: list[str] = []

    async def ended(self, call: EndedCall) -> None:
        self.codes.append(call.code)


async def served(behaviour: Any, context: GoneClient, journal: Journal | None = None) -> RecordingObserver:
    """Run a streaming handler behind a boundary, for a client that has gone."""
    observer = RecordingObserver()
    journals = {"p.Service": journal} if journal else None
    boundary = Boundary({"p.Service": Anybody()}, frozenset(), GatewayLimits(), observer, journals)

    async def find(details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(behaviour)

    details: Any = Details()
    handler: Any = await boundary.intercept_service(find, details)
    with pytest.raises(asyncio.CancelledError):
        await handler.unary_stream(b"", context)
    return observer


async def writes(request: object, context: Any) -> None:
    await context.write(b"")


class Generates:
    """In place of the pipeline: writes, and sees what comes of that."""

    def __init__(self) -> None:
        self.ends: list[type[BaseException]] = []

    async def generate(
        self, caller: Caller, request: Any, timeout_s: float | None, write: Any, trace: Any, explanation: Any
    ) -> None:
        try:
            await write(inference_pb2.GenerateResponse())
        except BaseException as error:
            self.ends.append(type(error))
            raise


async def runs_late(request: object, context: Any) -> None:
    raise DeadlineExceededError("too late")


@pytest.mark.parametrize(
    ("remaining_s", "code"),
    [
        (-0.1, "DEADLINE_EXCEEDED"),
        (0.0, "DEADLINE_EXCEEDED"),
        (0.01, "DEADLINE_EXCEEDED"),
        (5.0, "CANCELLED"),
        (None, "CANCELLED"),
    ],
)
async def test_a_write_that_fails_is_a_client_that_has_gone(remaining_s: float | None, code: str) -> None:
    with capture_logs() as logs:
        observer = await served(writes, GoneClient(remaining_s))
    assert observer.finished == [("Service/Method", code, "acme")]
    assert logs == []


async def test_a_status_that_reaches_nobody_is_counted_all_the_same() -> None:
    with capture_logs() as logs:
        observer = await served(runs_late, GoneClient(-0.1))
    assert observer.finished == [("Service/Method", "DEADLINE_EXCEEDED", "acme")]
    assert logs == []


@pytest.mark.parametrize(("behaviour", "code"), [(writes, "CANCELLED"), (runs_late, "DEADLINE_EXCEEDED")])
async def test_a_call_whose_client_has_gone_is_in_the_journal_all_the_same(behaviour: Any, code: str) -> None:
    journal = Journal()
    await served(behaviour, GoneClient(None), journal)
    assert journal.codes == [code]


async def test_the_pipeline_sees_a_client_that_has_gone_as_cancelled_and_not_as_a_fault() -> None:
    pipeline: Any = Generates()
    offers: Any = None
    await served(InferenceServicer(pipeline, offers).Generate, GoneClient(None))
    assert pipeline.ends == [asyncio.CancelledError]
