"""Connections to workers that begin and end in odd ways: what a gateway believes of a worker is true of the process it
speaks to, and what it held for one goes with it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest

from gateway.config import FailoverConfig, WorkerLinkConfig
from gateway.dispatch.link import WorkerLink
from gateway.routing.index import PageIndex
from radixgate.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, Stack, gateway, until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
Context = grpc.aio.ServicerContext[Any, Any]
Anybody = Callable[[], AbstractAsyncContextManager[tuple[str, list[None]]]]  # address, tries


def link_of(stack: Stack) -> WorkerLink:
    (link,) = stack.app.serving.fleet.links()
    return link


class TakenOver(FakeWorker):
    """As soon as it has said what it serves, a process that serves something else takes its address over."""

    taken_over = False

    async def GetModel(  # noqa: N802
        self, request: worker_pb2.GetModelRequest, context: Context
    ) -> worker_pb2.GetModelResponse:
        told = worker_pb2.GetModelResponse()
        told.CopyFrom(self.model)
        if not self.taken_over:
            self.taken_over = True
            self.model.model, self.model.model_revision = "another", "revision-2"
            self.report()
        return told

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: Context
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        serves = self.model.model
        async for response in super().Connect(request_iterator, context):
            if self.model.model != serves:
                return
            yield response


async def test_a_process_that_takes_an_address_over_is_not_taken_for_the_one_before_it(redis_url: str) -> None:
    async with TakenOver() as worker, gateway(redis_url, [worker]) as stack:
        await until(lambda: link_of(stack).last_model == "another")
        # Not known, or not there any more: as the connection that began with it ended early or late.
        assert (await stack.refused(model="tiny", **FOUR)).code in {grpc.StatusCode.NOT_FOUND, UNAVAILABLE}
        assert worker.submits == []
        assert (await stack.generate(model="another", **FOUR)).token_ids == completion(IDS, 4)


def num_held(index: PageIndex) -> int:
    return sum(len(counts) for counts in index._places) + len(index._places) // 3 - len(index._free)


class Odd(FakeWorker):
    """What it says first cannot be taken, as from a version that nobody knows."""

    is_odd = True

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: Context
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        is_first = self.is_odd
        async for response in super().Connect(request_iterator, context):
            if is_first:
                stored, device = worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_DEVICE
                good = worker_pb2.CacheEvent(seq=1, change=stored, tier=device, names=b"n" * 16)
                bad = worker_pb2.CacheEvent(seq=2, change=stored, tier=device, names=b"n" * 17)
                response.cache_events.extend([good, bad])
            is_first = False
            yield response


async def test_a_connection_whose_first_message_cannot_be_taken_leaves_nothing_behind(redis_url: str) -> None:
    worker = await Odd().start()
    worker.model.name_seed, worker.model.name_page_size = b"seed", 16
    async with gateway(redis_url, [worker.address], failover=FailoverConfig(wait_for_worker_s=60.0)) as stack:
        index = stack.app.serving.pages.index
        before = num_held(index)
        tries = 0

        def has_tried() -> bool:
            nonlocal tries
            tries = max(tries, worker.num_links)
            return link_of(stack).next_attempt_in_s() > 0 and tries > 0

        await until(has_tried)
        assert num_held(index) == before
        worker.is_odd = False
        assert (await asyncio.wait_for(stack.generate(**FOUR), 20)).token_ids == completion(IDS, 4)
        await worker.kill()
        await until(lambda: not stack.app.ready)
        assert num_held(index) == before


@contextlib.asynccontextmanager
async def mute() -> AsyncIterator[tuple[str, list[None]]]:
    """Somebody who takes connections and never says a word, as a process that was stopped; and how many there were."""
    taken: list[None] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(None)
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", taken
    server.close()


@contextlib.asynccontextmanager
async def quiet() -> AsyncIterator[tuple[str, list[None]]]:
    """A worker that opens streams, and says nothing on them; and how many there were."""
    opened: list[None] = []

    class Quiet(FakeWorker):
        async def Connect(  # noqa: N802
            self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: Context
        ) -> AsyncIterator[worker_pb2.ConnectResponse]:
            opened.append(None)
            async for response in super().Connect(request_iterator, context):
                yield response

    worker = Quiet()
    worker.keeps_quiet = True
    async with worker:
        yield worker.address, opened


@pytest.mark.parametrize("who", [mute, quiet])
async def test_a_link_whose_worker_does_not_answer_can_be_dropped(redis_url: str, who: Anybody) -> None:
    async with who() as (address, tries), gateway(redis_url, [address]) as stack:
        await until(lambda: len(tries) == 1)
        fleet = stack.app.serving.fleet
        # Sooner than it would try again by itself.
        await asyncio.wait_for(fleet.drop(address), 5)
        assert fleet.links() == []


@pytest.mark.parametrize("who", [mute, quiet])
async def test_a_worker_that_does_not_answer_is_asked_again_in_time(redis_url: str, who: Anybody) -> None:
    config = WorkerLinkConfig(connect_timeout_s=0.2, backoff_initial_s=0.01, backoff_max_s=0.01)
    async with who() as (address, tries), gateway(redis_url, [address], worker_link=config):
        await until(lambda: len(tries) >= 3)
