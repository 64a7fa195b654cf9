"""The examples' way with a gateway that says when to try again."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2, inference_pb2_grpc
from tests.tools import REPOSITORY, require_path, require_tool

CLIENTS = ["chat.py", "chat_async.py", "node"]


class BusyGateway(inference_pb2_grpc.InferenceServiceServicer):
    """Refuses so many calls, with the time after which to try again, and answers the next one."""

    def __init__(self) -> None:
        self.refusals = 0
        self.delay_s = 0.1
        self.calls = 0

    def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        self.calls += 1
        if self.calls <= self.refusals:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(round(self.delay_s * 1000))
            detail = any_pb2.Any()
            detail.Pack(retry)
            status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="one too many", details=[detail])
            context.abort_with_status(rpc_status.to_status(status))
        yield inference_pb2.GenerateResponse(text="Because.", token_ids=[1])
        usage = inference_pb2.Usage(prompt_tokens=7, completion_tokens=1, computed_prompt_tokens=4)
        usage.cached.device, usage.cached.host = 1, 2
        yield inference_pb2.GenerateResponse(finish_reason=inference_pb2.FINISH_REASON_STOP, usage=usage)


@pytest.fixture
def gateway() -> Iterator[tuple[BusyGateway, str]]:
    servicer = BusyGateway()  # type: ignore[abstract]  # the examples call nothing else
    server: Any = grpc.server(ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait(10)


def run(client: str, target: str) -> subprocess.CompletedProcess[str]:
    if client == "node":
        folder = REPOSITORY / "examples" / "node"
        require_path(folder / "node_modules" / "@grpc" / "grpc-js", "npm ci in examples/node, or make install")
        program = [require_tool("node", "apt-get install nodejs npm, then make install"), str(folder / "chat.mjs")]
    else:
        program = [sys.executable, str(REPOSITORY / "examples" / "python" / client)]
    command = [*program, "--target", target, "--key", "k", "Why?"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_tries_again_when_the_gateway_says_so(gateway: tuple[BusyGateway, str], client: str) -> None:
    servicer, target = gateway
    servicer.refusals = 2
    done = run(client, target)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("one too many; trying again in 0.1 s") == 2
    assert "Because." in done.stdout
    assert "[7 prompt tokens, 3 of them cached" in done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gives_up_at_last(gateway: tuple[BusyGateway, str], client: str) -> None:
    servicer, target = gateway
    servicer.refusals = 9
    done = run(client, target)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RESOURCE_EXHAUSTED: one too many"
    assert servicer.calls == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_not_wait_for_hours(gateway: tuple[BusyGateway, str], client: str) -> None:
    servicer, target = gateway
    servicer.refusals, servicer.delay_s = 1, 7200.0
    assert run(client, target).returncode == 1
    assert servicer.calls == 1


def test_the_node_client_explains_itself() -> None:
    node = require_tool("node", "apt-get install nodejs npm, then make install")
    folder = REPOSITORY / "examples" / "node"
    require_path(folder / "node_modules" / "@grpc" / "grpc-js", "npm ci in examples/node, or make install")
    command = [node, str(folder / "chat.mjs")]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: node chat.mjs ")
    wrong = subprocess.run([*command, "--colour"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Unknown option '--colour'")
    assert "at " not in wrong.stderr.split("usage:")[1]
