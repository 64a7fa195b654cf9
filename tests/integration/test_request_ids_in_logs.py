"""Every line of the logs about a request names it, in the gateway and in the worker, and no line has its content."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import structlog

from gateway.app import GatewayApp
from hicache.tiers.device import DevicePool
from metrics.logs import LogConfig, configure_logs
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import FOUR, RecordingObserver, Stack, channel_to, config_for, until
from tests.fakes.http_client import CHAT, connected
from tests.fakes.model import FakeModel
from tests.fakes.worker_stack import Gateway, config, running_worker
from worker.batch import Batch, Executor, SampledToken

Lines = list[dict[str, Any]]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What is logged from now on, as processes log it."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logs(LogConfig(format="json", level="debug"), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO, event: str) -> Lines:
    return [line for text in stream.getvalue().splitlines() if (line := json.loads(text))["event"] == event]


class Faulty(RecordingObserver):
    """Breaks every stream as it begins, as a fault of the gateway's own would."""

    def stream_opened(self, tenant: str) -> None:
        raise RuntimeError("a fault of the gateway's")


async def test_a_gateway_names_the_request_that_it_failed_on_over_both_ways_in(
    redis_url: str, worker: FakeWorker, logged: io.StringIO
) -> None:
    observer = Faulty()
    async with GatewayApp(config_for(redis_url, [worker.address]), observer) as app, channel_to(app.address) as channel:
        stack = Stack(app, observer, channel)
        key = await stack.add_tenant("acme")
        await until(lambda: app.ready)
        refused = await stack.refused(request_id="mine", **FOUR)
        assert refused.code is grpc.StatusCode.INTERNAL
        await stack.refused(**FOUR)
        async with connected(app.http_address) as connection:
            headers = {"authorization": f"Bearer {key}", "x-request-id": "web"}
            await connection.request("POST", "/v1/chat/completions", CHAT, headers)
            assert (await connection.answer()).status == 500
    mine, unnamed = lines(logged, "call failed")
    assert mine["request_id"] == "mine"
    assert len(unnamed["request_id"]) == 32
    (web,) = lines(logged, "request failed")
    assert web["request_id"] == "web"


async def test_a_call_of_an_operator_bears_no_request_of_before(
    redis_url: str, worker: FakeWorker, logged: io.StringIO
) -> None:
    observer = RecordingObserver()
    async with GatewayApp(config_for(redis_url, [worker.address]), observer) as app, channel_to(app.address) as channel:
        stack = Stack(app, observer, channel)
        await stack.add_tenant("acme")
        await until(lambda: app.ready)
        await stack.generate(request_id="mine", **FOUR)
        await stack.add_tenant("bolt")
    (ended,) = lines(logged, "stream ended")
    assert ended["request_id"] == "mine"
    assert all("request_id" not in line for line in lines(logged, "tenant created"))


class FailingExecutor:
    def run(self, batch: Batch) -> list[SampledToken]:
        raise RuntimeError("no memory")


@dataclass(frozen=True)
class FailingModel(FakeModel):
    """Its forward passes fail."""

    def executor(self, pool: DevicePool) -> Executor:
        return FailingExecutor()


async def test_a_worker_names_the_requests_whose_forward_pass_failed(logged: io.StringIO) -> None:
    async with running_worker(config(), FailingModel()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(7, [101, 102, 103])
        end = await gateway.end(7)
        await gateway.close()
    assert end.WhichOneof("end") == "error"
    (failed,) = lines(logged, "forward pass failed")
    assert (failed["request_ids"], failed["sequences"]) == (["r7"], 1)


async def test_a_worker_names_a_request_whose_sequence_id_is_taken(logged: io.StringIO) -> None:
    async with running_worker(config()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=400)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=400)
        await gateway.ended()
        await gateway.close()
    (twice,) = lines(logged, "sequence id used twice")
    assert twice["request_id"] == "r1"


async def test_no_line_has_tokens_or_text_of_a_request(redis_url: str, worker: FakeWorker, logged: io.StringIO) -> None:
    observer = RecordingObserver()
    async with GatewayApp(config_for(redis_url, [worker.address]), observer) as app, channel_to(app.address) as channel:
        stack = Stack(app, observer, channel)
        await stack.add_tenant("acme")
        await until(lambda: app.ready)
        message = {"role": "user", "content": "mydiary"}
        answer = await stack.generate(chat={"messages": [message]}, sampling={"max_new_tokens": 8})
    text = logged.getvalue()
    assert "stream ended" in text
    assert "mydiary" not in text
    assert json.dumps(answer.token_ids) not in text
    assert answer.text not in text
