"""Stands between a gateway and a worker and spoils what passes: how a deployment looks whose isolation is broken."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from typing import Any, Protocol, Self

import grpc

from radixgate.v1 import worker_pb2, worker_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]


class Fault(Protocol):
    """What goes wrong on the way."""

    def spoil(self, submit: worker_pb2.Submit) -> None:
        """Change what the worker gets to see."""
        ...

    def pause_s(self, submit: worker_pb2.Submit, admission: worker_pb2.Admission) -> float:
        """Return for how long a sequence's first token is held back. `submit` is what the worker has got."""
        ...


class Honest:
    """Nothing goes wrong, and a prompt token that was not cached takes its time, as on a real worker."""

    def __init__(self, token_s: float = 0.0) -> None:
        self._token_s = token_s

    def spoil(self, submit: worker_pb2.Submit) -> None:
        pass

    def pause_s(self, submit: worker_pb2.Submit, admission: worker_pb2.Admission) -> float:
        return self._token_s * (admission.prompt_tokens - admission.cached.device)


class Feed(Protocol):
    """What becomes of what a worker tells, on its way to gateways."""

    def pass_on(self, message: worker_pb2.ConnectResponse) -> None:
        """Change what the gateway gets to hear."""
        ...


class FaithfulFeed:
    """All comes as it was told."""

    def pass_on(self, message: worker_pb2.ConnectResponse) -> None:
        pass


class LossyFeed:
    """Of the changes of its cache, some get lost and others come twice. All else comes as it was told.

    Digests come once a second, so `digests_left` says for how many seconds there are any.
    """

    def __init__(self, seed: int, lost: float = 0.01, repeated: float = 0.01) -> None:
        self.lost = self.repeated = self.passed = 0  # events
        self.digests_left = sys.maxsize
        self.lost_share, self.repeated_share = lost, repeated
        self._chance = random.Random(seed)

    def pass_on(self, message: worker_pb2.ConnectResponse) -> None:
        if message.HasField("digest"):
            if self.digests_left == 0:
                message.ClearField("digest")
            else:
                self.digests_left -= 1
        events = list(message.cache_events)
        if not events:
            return
        del message.cache_events[:]
        for event in events:
            chance = self._chance.random()
            copies = 0 if chance < self.lost_share else 2 if chance > 1 - self.repeated_share else 1
            message.cache_events.extend([event] * copies)
            self.lost += copies == 0
            self.repeated += copies == 2
            self.passed += 1


class WorkerProxy(worker_pb2_grpc.WorkerServiceServicer):
    """A worker's address to gateways. `fault` may be exchanged at any time."""

    def __init__(self, worker: str, fault: Fault | None = None, feed: Feed | None = None) -> None:
        self.fault: Fault = fault or Honest()
        self._feed = feed or FaithfulFeed()
        self.drops_cache = True
        self.address = ""
        self._channel = grpc.aio.insecure_channel(worker)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._server = grpc.aio.server(
            options=[
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 100),
            ]
        )

    async def __aenter__(self) -> Self:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._server.stop(None)
        await self._channel.close()

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: _Context
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        call = self._stub.Connect()
        submits: dict[int, worker_pb2.Submit] = {}
        writer = asyncio.create_task(self._write(request_iterator, call, submits))
        try:
            async for response in call:
                self._feed.pass_on(response)
                for output in response.outputs:
                    if output.HasField("admission"):
                        await asyncio.sleep(self.fault.pause_s(submits.pop(output.sequence_id), output.admission))
                yield response
        finally:
            writer.cancel()
            call.cancel()

    async def _write(
        self, requests: AsyncIterator[worker_pb2.ConnectRequest], call: Any, submits: dict[int, worker_pb2.Submit]
    ) -> None:
        async for request in requests:
            if request.HasField("submit"):
                self.fault.spoil(request.submit)
                submits[request.submit.sequence_id] = request.submit
            await call.write(request)

    async def GetModel(  # noqa: N802
        self, request: worker_pb2.GetModelRequest, context: _Context
    ) -> worker_pb2.GetModelResponse:
        return await self._stub.GetModel(request)

    async def LoadAdapter(  # noqa: N802
        self, request: worker_pb2.LoadAdapterRequest, context: _Context
    ) -> worker_pb2.LoadAdapterResponse:
        return await self._stub.LoadAdapter(request)

    async def UnloadAdapter(  # noqa: N802
        self, request: worker_pb2.UnloadAdapterRequest, context: _Context
    ) -> worker_pb2.UnloadAdapterResponse:
        return await self._stub.UnloadAdapter(request)

    async def ListAdapters(  # noqa: N802
        self, request: worker_pb2.ListAdaptersRequest, context: _Context
    ) -> worker_pb2.ListAdaptersResponse:
        return await self._stub.ListAdapters(request)

    async def DropCache(  # noqa: N802
        self, request: worker_pb2.DropCacheRequest, context: _Context
    ) -> worker_pb2.DropCacheResponse:
        return await self._stub.DropCache(request) if self.drops_cache else worker_pb2.DropCacheResponse()

    async def DescribeCache(  # noqa: N802
        self, request: worker_pb2.DescribeCacheRequest, context: _Context
    ) -> worker_pb2.DescribeCacheResponse:
        return await self._stub.DescribeCache(request)
