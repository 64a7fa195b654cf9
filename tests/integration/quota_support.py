"""What tests of quotas share: what Redis has of a tenant, a Redis that can be killed, and several gateways over one."""

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from redis.asyncio import Redis

from cli.embedded_redis import find_program
from gateway.config import PolicyConfig
from gateway.policy import TenantPolicy
from gateway.quota import keys
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, Stack, bearer, gateway


def policies(**limits: Any) -> PolicyConfig:
    """Limits of the tenant acme; others have none."""
    return PolicyConfig(tenants={"acme": TenantPolicy(**limits)})


@dataclass(frozen=True)
class QuotaState:
    """What Redis has of a tenant's limits."""

    requests: int
    tokens: int
    running: int
    waiting: int


async def quota_state(client: Redis, tenant: str = "acme") -> QuotaState:
    async with client.pipeline() as pipeline:
        for window in (keys.requests(tenant), keys.tokens(tenant)):
            pipeline.hvals(window)
        for held in (keys.running(tenant), keys.line(tenant), keys.tickets(tenant)):
            pipeline.zcard(held)
        requests, tokens, running, waiting, tickets = await pipeline.execute()
    buckets = [int(value) for value in (*requests, *tokens)]
    assert min(buckets, default=0) >= 0, "a window has less than nothing in it"
    assert waiting == tickets
    return QuotaState(sum(map(int, requests)), sum(map(int, tokens)), running, waiting)


async def usage_of(stack: Stack, tenant: str = "acme") -> admin_pb2.UsageCounts:
    request = admin_pb2.GetUsageRequest(tenant_id=tenant)
    answer: admin_pb2.GetUsageResponse = await stack.admin.GetUsage(request, metadata=bearer(ADMIN_TOKEN))
    return answer.total


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Wait until `condition()` brings True; fail when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - conditions of all kinds, with a deadline
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateways(
    count: int, redis_url: str, workers: Sequence[FakeWorker], **changes: Any
) -> AsyncIterator[list[Stack]]:
    """Run several gateways over one Redis. All know acme and its key."""
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(gateway(redis_url, workers, **changes))]
        for _ in range(count - 1):
            other = await stack.enter_async_context(gateway(redis_url, workers, tenants=(), **changes))
            other.keys.update(made[0].keys)
            made.append(other)
        yield made


class KillableRedis:
    """A server on a port of its own that writes every change to disk before it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen([find_program(), *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    assert time.monotonic() < deadline, "the server did not start"
                    time.sleep(0.01)
                else:
                    return

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def copy_state(self, to: Path) -> None:
        """Keep what is on disk now."""
        shutil.copytree(self.folder / "appendonlydir", to)

    def put_back_state(self, kept: Path) -> None:
        """While it is dead: have it know only what it knew then."""
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(kept, self.folder / "appendonlydir")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()
