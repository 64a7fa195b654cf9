"""What tests of registered adapters share: an operator's calls, and where requests went."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, Refusal, Stack, bearer

ADMIN = bearer(ADMIN_TOKEN)
OLD, NEW, NEXT = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"


async def register(stack: Stack, revision: str, percent: int | None = None, **more: Any) -> admin_pb2.RegisteredAdapter:
    """A FakeWorker reads the revision off the path."""
    request = admin_pb2.RegisterAdapterRequest(
        **{"name": "poet", "path": f"/adapters/{revision}", "traffic_percent": percent, **more}
    )
    return (await stack.admin.RegisterAdapter(request, metadata=ADMIN, timeout=20)).adapter


async def registered(stack: Stack, name: str = "poet", **more: Any) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.GetRegisteredAdapterRequest(name=name, **more)
    return (await stack.admin.GetRegisteredAdapter(request, metadata=ADMIN, timeout=10)).adapter


async def roll_back(stack: Stack) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.RollBackAdapterRequest(name="poet")
    return (await stack.admin.RollBackAdapter(request, metadata=ADMIN, timeout=20)).adapter


async def split(stack: Stack, revision: str, percent: int) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.SplitAdapterTrafficRequest(name="poet", revision=revision, traffic_percent=percent)
    return (await stack.admin.SplitAdapterTraffic(request, metadata=ADMIN, timeout=10)).adapter


async def unregister(stack: Stack, grace_s: float | None = None) -> int:
    grace = None if grace_s is None else Duration(nanos=int(grace_s * 1e9))
    request = admin_pb2.UnregisterAdapterRequest(name="poet", grace=grace)
    return (await stack.admin.UnregisterAdapter(request, metadata=ADMIN, timeout=30)).failed_sequences


async def refusal(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return Refusal.of(refused.value)


def traffic(adapter: admin_pb2.RegisteredAdapter) -> dict[str, int]:
    return {each.revision: each.traffic_percent for each in adapter.revisions}


def revisions(worker: FakeWorker, name: str = "poet") -> set[str]:
    return {each.revision for each in worker.adapters if each.name == name}


async def given_revisions(stack: Stack, workers: list[FakeWorker], num: int, tenant_id: str = "acme") -> Counter[str]:
    """Send requests of as many scopes; return how many went to which revision."""
    before = [len(worker.submits) for worker in workers]
    calls = [stack.generate(tenant_id, adapter="poet", scope=f"user-{i}", **FOUR) for i in range(num)]
    await asyncio.gather(*calls)
    submits = [submit for worker, at in zip(workers, before, strict=True) for submit in worker.submits[at:]]
    return Counter(submit.adapter_revision for submit in submits)


async def until_refused(stack: Stack, code: grpc.StatusCode, **request: Any) -> None:
    """Wait until a gateway has heard of a change."""
    async with asyncio.timeout(10):
        while True:
            try:
                await stack.generate(**request, **FOUR)
            except grpc.aio.AioRpcError as error:
                if error.code() is code:
                    return
            await asyncio.sleep(0.01)


async def has_adapter(stack: Stack) -> bool:
    try:
        await stack.generate(adapter="poet", **FOUR)
    except grpc.aio.AioRpcError:
        return False
    return True


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - conditions of all kinds, with a deadline
            await asyncio.sleep(0.01)
