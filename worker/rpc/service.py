"""WorkerService over grpc.aio: one stream per gateway, one message per engine step."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Protocol

import grpc
import structlog

from radixgate.v1 import worker_pb2, worker_pb2_grpc
from worker.engine.ports import Request, SequenceId
from worker.errors import Failure, FailureCode
from worker.rpc.adapter_calls import AdapterCalls
from worker.rpc.adapters import AdapterDirectory
from worker.rpc.cache_calls import CacheCalls
from worker.rpc.constraints import Compilations, ConstraintCompiler
from worker.rpc.links import Link, Links
from worker.rpc.snapshots import Snapshots
from worker.rpc.translate import RefusedSubmit, constraint_of, request_from

_log = structlog.get_logger(__name__)


class Submissions(Protocol):
    """What the service needs of the engine's thread. Both may be called from any thread and return at once."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, sequence_id: SequenceId) -> None: ...


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers gateways. Owns no sequence: a link that ends cancels what it still has running."""

    def __init__(
        self,
        model: worker_pb2.GetModelResponse,
        engine: Submissions,
        links: Links,
        adapters: AdapterDirectory,
        adapter_calls: AdapterCalls,
        cache_calls: CacheCalls,
        snapshots: Snapshots,
        constraints: ConstraintCompiler,
    ) -> None:
        self._model = model
        self._engine = engine
        self._links = links
        self._adapters = adapters
        self._adapter_calls = adapter_calls
        self._cache_calls = cache_calls
        self._snapshots = snapshots
        self._compilations = Compilations(constraints, engine.submit, links.refuse)

    async def GetModel(
        self,
        request: worker_pb2.GetModelRequest,
        context: grpc.aio.ServicerContext[worker_pb2.GetModelRequest, worker_pb2.GetModelResponse],
    ) -> worker_pb2.GetModelResponse:
        return self._model

    async def LoadAdapter(
        self,
        request: worker_pb2.LoadAdapterRequest,
        context: grpc.aio.ServicerContext[worker_pb2.LoadAdapterRequest, worker_pb2.LoadAdapterResponse],
    ) -> worker_pb2.LoadAdapterResponse:
        return await self._adapter_calls.load(request, context)

    async def UnloadAdapter(
        self,
        request: worker_pb2.UnloadAdapterRequest,
        context: grpc.aio.ServicerContext[worker_pb2.UnloadAdapterRequest, worker_pb2.UnloadAdapterResponse],
    ) -> worker_pb2.UnloadAdapterResponse:
        return await self._adapter_calls.unload(request, context)

    async def ListAdapters(
        self,
        request: worker_pb2.ListAdaptersRequest,
        context: grpc.aio.ServicerContext[worker_pb2.ListAdaptersRequest, worker_pb2.ListAdaptersResponse],
    ) -> worker_pb2.ListAdaptersResponse:
        return self._adapter_calls.list_all()

    async def DropCache(
        self,
        request: worker_pb2.DropCacheRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DropCacheRequest, worker_pb2.DropCacheResponse],
    ) -> worker_pb2.DropCacheResponse:
        return await self._cache_calls.drop(request, context)

    async def DescribeCache(
        self,
        request: worker_pb2.DescribeCacheRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DescribeCacheRequest, worker_pb2.DescribeCacheResponse],
    ) -> worker_pb2.DescribeCacheResponse:
        return await self._cache_calls.describe(context)

    async def Connect(
        self,
        request_iterator: AsyncIterator[worker_pb2.ConnectRequest],
        context: grpc.aio.ServicerContext[worker_pb2.ConnectRequest, worker_pb2.ConnectResponse],
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        link = self._links.open()
        _log.info("gateway connected", peer=context.peer(), link=link.link_id)
        reader = asyncio.create_task(self._read(link, request_iterator))
        try:
            async for message in link.messages():
                yield message
        finally:
            self._links.close(link)
            cancelled = self._cancel_all(link)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            _log.info("gateway gone", link=link.link_id, cancelled_sequences=cancelled)

    async def _read(self, link: Link, requests: AsyncIterator[worker_pb2.ConnectRequest]) -> None:
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "submit":
                    self._submit(link, request.submit)
                elif kind == "cancel":
                    self._cancel((link.link_id, request.cancel.sequence_id))
                elif kind == "snapshot_query":
                    self._snapshots.ask(link)
        finally:
            # A gateway that has closed its side wants no more answers either.
            link.close()

    def _submit(self, link: Link, submit: worker_pb2.Submit) -> None:
        if submit.sequence_id in link.live:
            # An answer under this id would be taken for the first sequence's: the gateway is at fault, end its stream.
            _log.error(
                "sequence id used twice", link=link.link_id, sequence=submit.sequence_id, request_id=submit.request_id
            )
            link.close()
            return
        sequence_id = self._links.began(link, submit)
        try:
            request = request_from(submit, sequence_id, time.monotonic(), self._adapters)
            constraint = constraint_of(submit.sampling)
        except RefusedSubmit as refused:
            self._links.refuse(sequence_id, refused.failure)
        except Exception:  # noqa: BLE001 - outermost for one request: the stream of all the others goes on
            _log.exception("submit failed", link=link.link_id, request_id=submit.request_id)
            self._links.refuse(sequence_id, Failure(FailureCode.INTERNAL, "the request could not be taken"))
        else:
            if constraint is None:
                self._engine.submit(request)
            else:
                self._compilations.begin(request, constraint)

    def _cancel(self, sequence_id: SequenceId) -> None:
        if not self._compilations.cancel(sequence_id):
            self._engine.cancel(sequence_id)

    def _cancel_all(self, link: Link) -> int:
        running = list(link.live)
        for sequence_id in running:
            self._cancel((link.link_id, sequence_id))
        return len(running)
