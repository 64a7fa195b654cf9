"""The whole product as a user starts it, and a client to talk to it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from radixgate.v1 import inference_pb2, inference_pb2_grpc
from tests.processes import wait_until

READY_TIMEOUT_S = 240.0
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Stack:
    """A running `radixgate serve --demo`."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    worker: str
    metrics: tuple[str, ...]
    keys: dict[str, str]
    admin_token: str

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return all samples of one metric, over all endpoints, as (labels, value)."""
        found = []
        for url in self.metrics:
            with urllib.request.urlopen(url, timeout=10) as response:
                found += parse_samples(response.read().decode(), name)
        return found

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that carry `labels`."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())


def parse_samples(page: str, name: str) -> list[tuple[dict[str, str], float]]:
    found = []
    for line in page.splitlines():
        if line.startswith((name + "{", name + " ")):
            inside, _, value = line[len(name) :].rpartition(" ")
            pairs = (pair.partition("=") for pair in inside.strip("{} ").split(",") if pair)
            found.append(({label: text.strip('"') for label, _, text in pairs}, float(value)))
    return found


@contextmanager
def running_stack(folder: Path, arguments: Sequence[str] = ()) -> Iterator[Stack]:
    """Run the stack until the block ends; ended with SIGTERM if it still runs then.

    Its temporary files are in `folder` too: a supervisor that is killed cannot tidy up.
    """
    ready_file = folder / "ready.json"
    log = (folder / "stack.log").open("wb")
    command = [sys.executable, "-m", "cli", "serve", "--demo", "--ready-file", str(ready_file), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        wait_until(
            lambda: ready_file.exists() or process.poll() is not None, timeout_s=READY_TIMEOUT_S, what="stack ready"
        )
        assert process.poll() is None, (folder / "stack.log").read_text()
        ready = json.loads(ready_file.read_text())
        metrics, secrets = tuple(ready["metrics"]), (ready["tenants"], ready["admin_token"])
        yield Stack(process, ready["grpc"], ready["http"], ready["worker"], metrics, *secrets)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()


@dataclass(frozen=True)
class Answer:
    text: str
    token_ids: list[int]
    finish_reason: int
    usage: inference_pb2.Usage
    logprobs: list[inference_pb2.TokenLogprobs]

    @property
    def cached(self) -> int:
        return self.usage.cached.device + self.usage.cached.host + self.usage.cached.storage


class Client:
    """One tenant's client."""

    def __init__(self, target: str, key: str | None) -> None:
        self.channel = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", 64 << 20)])
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {key}"),) if key else ()

    def stream(self, request: inference_pb2.GenerateRequest, timeout_s: float = CALL_TIMEOUT_S):  # type: ignore[no-untyped-def]
        return self.stub.Generate(request, metadata=self.metadata, timeout=timeout_s)

    def generate(self, request: inference_pb2.GenerateRequest, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
        responses = list(self.stream(request, timeout_s))
        assert not any(response.HasField("usage") for response in responses[:-1])
        return Answer(
            text="".join(response.text for response in responses),
            token_ids=[token_id for response in responses for token_id in response.token_ids],
            finish_reason=responses[-1].finish_reason,
            usage=responses[-1].usage,
            logprobs=[entry for response in responses for entry in response.logprobs],
        )

    def ask(self, *contents: str, max_new_tokens: int = 16, scope: str = "") -> Answer:
        """Chat: `contents` alternate between user and assistant, beginning with the user. Greedy."""
        return self.generate(chat_request(*contents, max_new_tokens=max_new_tokens, scope=scope))

    def close(self) -> None:
        self.channel.close()


def chat_request(*contents: str, max_new_tokens: int = 16, scope: str = "") -> inference_pb2.GenerateRequest:
    roles = ("user", "assistant")
    messages = [
        inference_pb2.ChatMessage(role=roles[index % 2], content=content) for index, content in enumerate(contents)
    ]
    return inference_pb2.GenerateRequest(
        chat=inference_pb2.ChatPrompt(messages=messages),
        sampling=inference_pb2.SamplingParams(max_new_tokens=max_new_tokens, temperature=0),
        scope=scope,
    )


def tokens_request(token_ids: Sequence[int], max_new_tokens: int = 16) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenPrompt(token_ids=token_ids),
        sampling=inference_pb2.SamplingParams(max_new_tokens=max_new_tokens, temperature=0),
    )
