"""The cache over gRPC: what operators ask of its contents. Belongs to the event loop; the engine's thread answers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import grpc
from grpc_status import rpc_status

from hicache.cache import Holdings
from hicache.keys import EXTRA_KEY_BYTES, Namespace
from radixgate.v1 import worker_pb2
from worker.engine.ports import CacheContents
from worker.rpc.statuses import status_of

MAX_NAMESPACES: Final = 10_000

_AT_A_TIME: Final = 256
"""Namespaces that the engine drops between two steps."""

Answer = TypeVar("Answer")
Context = grpc.aio.ServicerContext[Any, Any]


class CacheEngine(Protocol):
    """What the calls need of the engine's thread. Both return at once: False if it has stopped, and calls nobody."""

    def drop_cache(self, namespaces: Sequence[Namespace], on_done: Callable[[Holdings | None], None]) -> bool: ...

    def describe_cache(self, on_done: Callable[[CacheContents | None], None]) -> bool: ...


class CacheCalls:
    """Answers the two calls of WorkerService that are about the cache."""

    def __init__(self, engine: CacheEngine) -> None:
        self._engine = engine

    async def drop(self, request: worker_pb2.DropCacheRequest, context: Context) -> worker_pb2.DropCacheResponse:
        namespaces = await _namespaces(request.namespaces, context)
        device = host = 0
        for part in _batches(namespaces):
            freed = await _answer(partial(self._engine.drop_cache, part), context)
            device += freed.device
            host += freed.host
        return worker_pb2.DropCacheResponse(device_tokens=device, host_tokens=host)

    async def describe(self, context: Context) -> worker_pb2.DescribeCacheResponse:
        contents = await _answer(self._engine.describe_cache, context)
        return worker_pb2.DescribeCacheResponse(
            device_slots=contents.device_slots,
            device_free_slots=contents.device_free_slots,
            host_slots=contents.host_slots,
            host_free_slots=contents.host_free_slots,
            tenants=[
                worker_pb2.TenantCache(
                    tenant=each.tenant,
                    device_tokens=each.device,
                    host_tokens=each.host,
                    namespaces=each.namespaces,
                )
                for each in contents.tenants
            ],
        )


async def _namespaces(messages: Sequence[worker_pb2.CacheNamespace], context: Context) -> list[Namespace]:
    """Return the namespaces, each once. One that the cache knows nothing of is none to complain about."""
    if len(messages) > MAX_NAMESPACES:
        await _refuse(context, "namespaces", f"holds {len(messages)}; at most {MAX_NAMESPACES} are allowed")
    found: dict[Namespace, None] = {}
    for index, message in enumerate(messages):
        if len(message.extra_key) != EXTRA_KEY_BYTES:
            size = len(message.extra_key)
            field = f"namespaces[{index}].extra_key"
            await _refuse(context, field, f"must have {EXTRA_KEY_BYTES} bytes, has {size}")
        found[Namespace(message.extra_key, message.adapter_revision)] = None
    return list(found)


def _batches(namespaces: Sequence[Namespace]) -> list[Sequence[Namespace]]:
    return [namespaces[start : start + _AT_A_TIME] for start in range(0, len(namespaces), _AT_A_TIME)]


async def _answer(ask: Callable[[Callable[[Answer | None], None]], bool], context: Context) -> Answer:
    """Ask the engine's thread, and wait for what it says."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer | None] = loop.create_future()

    def set_answer(value: Answer | None) -> None:
        if not answer.done():  # otherwise nobody waits for it any more
            answer.set_result(value)

    def on_done(value: Answer | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_answer, value)

    if not ask(on_done):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")
    value = await answer
    if value is None:
        await context.abort(grpc.StatusCode.INTERNAL, "the cache could not be asked")
    assert value is not None
    return value


async def _refuse(context: Context, field: str, message: str) -> None:
    status = status_of(grpc.StatusCode.INVALID_ARGUMENT, message, field)
    await context.abort_with_status(rpc_status.to_status(status))
