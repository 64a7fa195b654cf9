"""The usage log is exact: its lines add up to what GetUsage says and to what clients were told, whatever the ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from radixgate.v1 import admin_pb2, inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, IDS, MANY, Stack, bearer, gateway
from tests.fakes.http_client import CHAT, connected
from tests.fakes.served_gateway import served
from tests.integration.quota_support import eventually, quota_state, usage_of

Line = dict[str, Any]
COUNTS = tuple(field.name for field in admin_pb2.UsageCounts.DESCRIPTOR.fields if field.name != "requests")


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summed(lines: list[Line], tenant: str) -> admin_pb2.UsageCounts:
    own = [line for line in lines if line["tenant"] == tenant and line["call"] == "Generate"]
    return admin_pb2.UsageCounts(requests=len(own), **{name: sum(line[name] for line in own) for name in COUNTS})


async def all_accounted(stack: Stack, tenant: str, path: Path) -> admin_pb2.UsageCounts:
    """Return what GetUsage says once it and the log have all that workers admitted: both are written later."""
    admitted = sum(1 for admission in stack.observer.admissions if admission[0] == tenant)

    async def is_so() -> bool:
        return (await usage_of(stack, tenant)).requests == summed(read(path), tenant).requests == admitted

    await eventually(is_so)
    return await usage_of(stack, tenant)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


class Told:
    """What a client of one request was told."""

    def __init__(self) -> None:
        self.completion_tokens = 0
        self.usage: inference_pb2.Usage | None = None  # None: it did not come to its end


async def ask(stack: Stack, number: int) -> Told:
    """One request of a mix: some are cancelled, some have too little time, some come to their end."""
    told, tenant = Told(), ("acme", "bolt")[number % 2]
    request = {**(MANY if number % 3 else FOUR), "request_id": f"r-{number}"}
    if number % 4 == 1:
        request["adapter"] = "poet"
    call = stack.call(tenant, timeout=0.05 if number % 7 == 3 else 30.0, **request)
    try:
        async for message in call:
            told.completion_tokens += len(message.token_ids)
            if message.HasField("usage"):
                told.usage = message.usage
            if number % 5 == 4:
                call.cancel()
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        told.usage = None
    return told


async def run_out_of_time(stack: Stack, worker: FakeWorker) -> None:
    """A request that is admitted, gets two tokens, and has no time for more."""
    worker.hold()
    call = stack.call(timeout=1.5, request_id="late", **MANY)
    await worker.until(lambda: worker.num_running == 1)
    worker.step(2)
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    worker.go()


async def chat(stack: Stack, number: int, *, stays: bool) -> Any:
    headers = {"authorization": f"Bearer {stack.keys['acme']}", "x-request-id": f"h-{number}"}
    async with connected(stack.app.http_address) as connection:
        await connection.request("POST", "/v1/chat/completions", {**CHAT, "stream": not stays}, headers)
        return (await connection.answer()).json if stays else await connection.head()


async def test_lines_add_up_to_what_is_accounted_and_to_what_clients_were_told(
    redis_url: str, client: Redis, worker: FakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    worker.tell_adapters(worker_pb2.Adapter(name="poet", revision="r1"))
    async with gateway(redis_url, [worker], tenants=("acme", "bolt"), usage_log=str(path)) as stack:
        await run_out_of_time(stack, worker)
        told = await asyncio.gather(*(ask(stack, number) for number in range(120)))
        chats = await asyncio.gather(*(chat(stack, number, stays=number % 2 == 0) for number in range(20)))

        async def at_rest() -> bool:
            state = await quota_state(client)
            return state.running == state.waiting == 0 and not stack.observer.open_streams.total()

        await eventually(at_rest)
        accounted = {tenant: await all_accounted(stack, tenant, path) for tenant in ("acme", "bolt")}
    lines = read(path)
    assert {tenant: summed(lines, tenant) for tenant in accounted} == accounted
    by_id = {line["request_id"]: line for line in lines}
    assert len(by_id) == len(lines)
    finished = [number for number, each in enumerate(told) if each.usage is not None]
    assert 20 < len(finished) < 120
    for number, each in enumerate(told):
        line = by_id.get(f"r-{number}")
        if each.usage is not None:
            assert line is not None
            assert line["end"] == "finished"
            for name in ("prompt_tokens", "completion_tokens", "computed_prompt_tokens"):
                assert line[name] == getattr(each.usage, name)
            assert line["cached_device_tokens"] == each.usage.cached.device
        else:
            assert (line["completion_tokens"] if line else 0) >= each.completion_tokens
    assert {line["end"] for line in lines} == {"finished", "cancelled", "deadline_exceeded"}
    assert (by_id["late"]["end"], by_id["late"]["completion_tokens"]) == ("deadline_exceeded", 2)
    for number, answer in enumerate(chats):
        if number % 2 == 0:
            assert by_id[f"h-{number}"]["completion_tokens"] == answer["usage"]["completion_tokens"]


async def test_a_line_says_whose_request_it_was_and_what_it_used(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    async with gateway(redis_url, [worker], usage_log=str(path)) as stack:
        for number in range(2):
            await stack.generate(request_id=f"r-{number}", **FOUR)
    first, second = read(path)
    seconds, now = second.pop("seconds"), datetime.now(UTC)
    assert 0 < seconds < 60
    assert abs((now - datetime.fromisoformat(second.pop("time"))).total_seconds()) < 60
    assert second.pop("day") in {now.strftime("%Y%m%d"), first["day"]}
    assert second == {
        "request_id": "r-1",
        "tenant": "acme",
        "call": "Generate",
        "model": "tiny",
        "adapter": "",
        "prompt_tokens": 3,
        "cached_device_tokens": 2,
        "cached_host_tokens": 0,
        "cached_storage_tokens": 0,
        "computed_prompt_tokens": 1,
        "public_prefix_tokens": 0,
        "cached_public_tokens": 0,
        "completion_tokens": 4,
        "counted_tokens": 0,
        "end": "finished",
    }


async def test_counting_tokens_leaves_a_line_and_what_used_nothing_leaves_none(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    async with gateway(redis_url, [worker], usage_log=str(path)) as stack:
        request = inference_pb2.CountTokensRequest(tokens=inference_pb2.TokenPrompt(token_ids=IDS))
        await stack.inference.CountTokens(request, metadata=bearer(stack.keys["acme"]))
        await stack.inference.ListModels(inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys["acme"]))
        await stack.refused(adapter="none", **FOUR)
        worker.failure = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, message="full")
        await stack.refused(**FOUR)
    (line,) = read(path)
    assert (line["call"], line["counted_tokens"], line["prompt_tokens"], line["end"]) == (
        "CountTokens",
        3,
        0,
        "finished",
    )


async def lose_after(tokens: int, call: Any, worker: FakeWorker) -> None:
    """Take the worker away when the client has so many tokens of it."""
    received = 0
    async for message in call:
        received += len(message.token_ids)
        if received == tokens:
            await worker.kill()


async def test_a_worker_that_is_lost_is_named_as_the_end(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with gateway(redis_url, [worker], usage_log=str(path)) as stack:
        worker.hold()
        call = stack.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        worker.step(2)
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await lose_after(2, call, worker)
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    (line,) = read(path)
    assert (line["end"], line["completion_tokens"]) == ("stream_lost", 2)


async def test_no_line_holds_a_prompt_or_a_text(redis_url: str, worker: FakeWorker, tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with gateway(redis_url, [worker], usage_log=str(path)) as stack:
        answer = await stack.generate(chat={"messages": [{"role": "user", "content": "mydiary"}]})
    text = path.read_text()
    assert "mydiary" not in text
    assert answer.text.strip() not in text


async def test_a_disk_that_is_full_loses_no_request_and_shows(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    path.symlink_to("/dev/full")
    async with served(redis_url, [worker], usage_log=str(path)) as gateway:
        await gateway.until_shown("radixgate_gateway_worker_connected", 1, worker=worker.address)
        for _ in range(3):
            assert len((await gateway.stack.generate(**FOUR)).token_ids) == 4
        await gateway.until_shown("radixgate_gateway_usage_log_waiting_lines", 3)
        assert await gateway.shown("radixgate_gateway_usage_log_lost_lines_total") == 0
        path.unlink()
        await gateway.until_shown("radixgate_gateway_usage_log_waiting_lines", 0)
    assert len(read(path)) == 3


async def test_a_usage_log_that_cannot_be_opened_keeps_the_gateway_from_starting(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=r"gateway\.usage_log: cannot open"):
        async with gateway(redis_url, [worker], usage_log=str(tmp_path / "none" / "usage.jsonl")):
            raise AssertionError("it has started")


async def test_lines_bear_the_day_that_they_are_accounted_on(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    path = tmp_path / "usage.jsonl"
    async with gateway(redis_url, [worker], usage_log=str(path)) as stack:
        await stack.generate(**FOUR)
        await all_accounted(stack, "acme", path)
        answer: admin_pb2.GetUsageResponse = await stack.admin.GetUsage(
            admin_pb2.GetUsageRequest(tenant_id="acme"), metadata=bearer(ADMIN_TOKEN)
        )
    (row,) = answer.rows
    (line,) = read(path)
    assert row.day.replace("-", "") == line["day"]
