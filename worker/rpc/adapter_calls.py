"""Adapters over gRPC: messages to the directory and back, and what it refuses as statuses with `google.rpc` details."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from google.protobuf import timestamp_pb2
from google.rpc import status_pb2
from grpc_status import rpc_status

from radixgate.v1 import worker_pb2
from worker.engine.adapters import AdapterState
from worker.rpc.adapters import (
    AdapterDirectory,
    AdapterEntry,
    AdapterNameTaken,
    AdapterRefused,
    InvalidAdapter,
    TooManyAdapters,
    UnknownAdapter,
)
from worker.rpc.statuses import status_of

DEFAULT_GRACE_S: Final = 30.0

_CODES: Final[Mapping[type[AdapterRefused], grpc.StatusCode]] = {
    InvalidAdapter: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownAdapter: grpc.StatusCode.NOT_FOUND,
    AdapterNameTaken: grpc.StatusCode.ALREADY_EXISTS,
    TooManyAdapters: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

States = Callable[[], Sequence[AdapterState]]
Context = grpc.aio.ServicerContext[Any, Any]


class AdapterCalls:
    """Answers the three calls of WorkerService that are about adapters."""

    def __init__(self, directory: AdapterDirectory, states: States) -> None:
        """`states` says where adapters are at this moment."""
        self._directory = directory
        self._states = states

    async def load(self, request: worker_pb2.LoadAdapterRequest, context: Context) -> worker_pb2.LoadAdapterResponse:
        async with _refusals_told(context):
            entry = await self._directory.load(request.name, request.path, request.tenants, beside=request.beside)
        return worker_pb2.LoadAdapterResponse(adapter=_adapter_message(entry, self._state_of(entry.revision)))

    async def unload(
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.UnloadAdapterResponse:
        async with _refusals_told(context):
            if request.grace_ms < 0:
                raise InvalidAdapter("grace_ms", f"is {request.grace_ms}; must be at least 0")
            grace_s = request.grace_ms / 1000 or DEFAULT_GRACE_S
            gone = await self._directory.unload(request.name, request.revision, request.tenants, grace_s)
        return worker_pb2.UnloadAdapterResponse(
            failed_sequences=gone.failed_sequences, dropped_tokens=gone.dropped_tokens
        )

    def list_all(self) -> worker_pb2.ListAdaptersResponse:
        return worker_pb2.ListAdaptersResponse(adapters=self.adapter_set().adapters)

    def adapter_set(self) -> worker_pb2.AdapterSet:
        """Return all adapters, as gateways are told of them."""
        states = {state.revision: state for state in self._states()}
        return worker_pb2.AdapterSet(
            adapters=[_adapter_message(entry, states.get(entry.revision)) for entry in self._directory.entries()]
        )

    def _state_of(self, revision: str) -> AdapterState | None:
        return next((state for state in self._states() if state.revision == revision), None)


def _adapter_message(entry: AdapterEntry, state: AdapterState | None) -> worker_pb2.Adapter:
    load_time = timestamp_pb2.Timestamp()
    load_time.FromMilliseconds(int(entry.load_time * 1000))
    return worker_pb2.Adapter(
        name=entry.name,
        revision=entry.revision,
        tenants=sorted(entry.tenants),
        rank=entry.rank,
        targets=entry.targets,
        num_bytes=entry.num_bytes,
        resident=state is not None and state.resident,
        users=0 if state is None else state.users,
        load_time=load_time,
    )


@asynccontextmanager
async def _refusals_told(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except AdapterRefused as refused:
        await context.abort_with_status(rpc_status.to_status(_status(refused)))


def _status(refused: AdapterRefused) -> status_pb2.Status:
    field = refused.field if isinstance(refused, InvalidAdapter) else ""
    return status_of(_CODES[type(refused)], refused.message, field)
