"""One trace over two processes, from `radixgate serve` to a collector."""

import secrets
from pathlib import Path

import pytest

from radixgate.v1 import inference_pb2_grpc
from tests.e2e.stack import Client, chat_request, running_stack
from tests.fakes.collector import collecting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_both_processes_send_their_part_of_a_trace_also_when_they_end(
    tmp_path: Path, tiny_arguments: tuple[str, ...]
) -> None:
    trace_id = secrets.token_hex(16)
    with collecting() as collector:
        settings = (f"tracing.endpoint={collector.address}", "tracing.sample_ratio=1.0")
        arguments = [*tiny_arguments, *(part for each in settings for part in ("--set", each))]
        with running_stack(tmp_path, arguments) as stack:
            client = Client(stack.grpc, stack.keys["demo-a"])
            stub = inference_pb2_grpc.InferenceServiceStub(client.channel)
            metadata = (*client.metadata, ("traceparent", f"00-{trace_id}-{'a' * 16}-01"))
            list(stub.Generate(chat_request("Hello", max_new_tokens=8), metadata=metadata, timeout=60))
            client.close()
        spans = collector.of(trace_id)  # both have ended, and have left nothing behind
    services = {span.name: span.resource["service.name"] for span in spans}
    assert services["stream"] == "radixgate-gateway"
    assert services["sequence"] == services["decode"] == "radixgate-worker"
    by_id = {span.span_id: span for span in spans}
    (sequence,) = [span for span in spans if span.name == "sequence"]
    assert by_id[sequence.parent_id].name == "stream"
    assert by_id[by_id[sequence.parent_id].parent_id].parent_id == "a" * 16
    assert {span.resource["service.version"] for span in spans} != {""}
