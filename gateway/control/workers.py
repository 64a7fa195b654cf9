"""Single calls to workers, over the connections that the fleet keeps: what they answer, or why they do not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.control.registrations import AdapterKey
from gateway.dispatch.link import WorkerLink
from gateway.errors import Violation
from radixgate.v1 import worker_pb2, worker_pb2_grpc

MAX_NAMESPACES: Final = 1000  # of one call

_LOAD_TIMEOUT_S: Final = 300.0
_UNLOAD_SLACK_S: Final = 15.0
_DROP_TIMEOUT_S: Final = 30.0
_DESCRIBE_TIMEOUT_S: Final = 5.0
# Such a worker has not decided anything: it may be asked again.
_AWAY: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
)  # fmt: skip

AnswerT = TypeVar("AnswerT")


class WorkerAwayError(Exception):
    """The worker is not connected, or went away before it had answered."""

    def __init__(self, worker: str, detail: str = "not connected") -> None:
        super().__init__(f"worker {worker}: {detail}")
        self.worker = worker
        self.detail = detail


class WorkerRefusedError(Exception):
    """The worker says why it does not do it. `violations` where it names fields of the request."""

    def __init__(self, worker: str, code: grpc.StatusCode, detail: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(f"worker {worker}: {detail}")
        self.worker = worker
        self.code = code
        self.detail = detail
        self.violations = tuple(violations)


async def load_adapter(link: WorkerLink, key: AdapterKey, path: str) -> worker_pb2.Adapter:
    """Have a worker load weights beside those that the name has. Raises WorkerAwayError, WorkerRefusedError."""
    request = worker_pb2.LoadAdapterRequest(name=key.name, path=path, tenants=sorted(key.tenants), beside=True)
    answer = await _call(link, lambda stub: stub.LoadAdapter(request, timeout=_LOAD_TIMEOUT_S))
    return answer.adapter


async def unload_adapter(link: WorkerLink, key: AdapterKey, revision: str, grace_s: float) -> int:
    """Take a revision from a worker, and return how many sequences failed for it: 0 where it had none such.

    Raises WorkerAwayError, WorkerRefusedError.
    """
    request = worker_pb2.UnloadAdapterRequest(
        name=key.name, revision=revision, tenants=sorted(key.tenants), grace_ms=max(1, round(grace_s * 1000))
    )
    try:
        answer = await _call(link, lambda stub: stub.UnloadAdapter(request, timeout=grace_s + _UNLOAD_SLACK_S))
    except WorkerRefusedError as refused:
        if refused.code is grpc.StatusCode.NOT_FOUND:
            return 0
        raise
    return answer.failed_sequences


async def drop_cache(link: WorkerLink, namespaces: Iterable[worker_pb2.CacheNamespace]) -> worker_pb2.DropCacheResponse:
    """Free at most MAX_NAMESPACES namespaces of a worker. Raises WorkerAwayError, WorkerRefusedError."""
    request = worker_pb2.DropCacheRequest(namespaces=namespaces)
    return await _call(link, lambda stub: stub.DropCache(request, timeout=_DROP_TIMEOUT_S))


async def describe_cache(link: WorkerLink) -> worker_pb2.DescribeCacheResponse:
    """Raises WorkerAwayError, WorkerRefusedError."""
    request = worker_pb2.DescribeCacheRequest()
    return await _call(link, lambda stub: stub.DescribeCache(request, timeout=_DESCRIBE_TIMEOUT_S))


async def _call(
    link: WorkerLink, make: "Callable[[worker_pb2_grpc.WorkerServiceAsyncStub], Awaitable[AnswerT]]"
) -> AnswerT:
    if link.calls is None:
        raise WorkerAwayError(link.address)
    with _translated(link.address):
        return await make(link.calls)


@contextmanager
def _translated(worker: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() in _AWAY:
            raise WorkerAwayError(worker, f"{error.code().name}: {error.details()}") from None
        raise WorkerRefusedError(
            worker, error.code(), error.details() or error.code().name, _violations(error)
        ) from None
    except (grpc.aio.UsageError, asyncio.CancelledError) as error:
        # The link went down, and with it the channel: gRPC cancels what still runs on that, and takes nothing more.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        raise WorkerAwayError(worker, "the connection was lost") from None


def _violations(error: grpc.aio.AioRpcError) -> list[Violation]:
    bad = error_details_pb2.BadRequest()
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]
    for packed in status.details if status is not None else ():
        packed.Unpack(bad)
    return [Violation(each.field, each.description) for each in bad.field_violations]
