"""One chat turn over gRPC, streamed.

    python chat.py --key KEY "Why is the sky blue?"

Needs the package `radixgate`, for the stubs that are generated from its .proto files; any gRPC client can be generated
from these.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2, inference_pb2_grpc

MAX_TRIES = 3
LONGEST_WAIT_S = 60.0


def main() -> int:
    options = read_options()
    if options.ca:
        with open(options.ca, "rb") as file:
            channel = grpc.secure_channel(options.target, grpc.ssl_channel_credentials(file.read()))
    else:
        channel = grpc.insecure_channel(options.target)
    request = inference_pb2.GenerateRequest(
        model=options.model,
        chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="user", content=options.message)]),
        sampling=inference_pb2.SamplingParams(max_new_tokens=options.max_new_tokens, temperature=0),
    )
    with channel:
        try:
            for message in answer(inference_pb2_grpc.InferenceServiceStub(channel), request, options.key):
                print(message.text, end="", flush=True)
                if message.HasField("usage"):
                    print(f"\n{summary(message.usage)}")
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    return 0


def answer(
    stub: inference_pb2_grpc.InferenceServiceStub, request: inference_pb2.GenerateRequest, key: str
) -> Iterator[inference_pb2.GenerateResponse]:
    """Yield the answer's messages. Where the gateway says when to try again, before the first one, do that."""
    metadata = (("authorization", f"Bearer {key}"),)
    for attempt in range(1, MAX_TRIES + 1):
        has_begun = False
        try:
            for message in stub.Generate(request, metadata=metadata, timeout=120):
                has_begun = True
                yield message
        except grpc.RpcError as error:
            wait_s = retry_delay_s(error)
            if has_begun or wait_s is None or wait_s > LONGEST_WAIT_S or attempt == MAX_TRIES:
                raise
            print(f"{error.details()}; trying again in {wait_s:g} s", file=sys.stderr)
            time.sleep(wait_s)
        else:
            return


def retry_delay_s(error: grpc.RpcError) -> float | None:
    """Return what the gateway's RetryInfo says, if there is one: after a limit was reached, or while it starts."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    for detail in () if status is None else status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToTimedelta().total_seconds())
    return None


def summary(usage: inference_pb2.Usage) -> str:
    cached = usage.cached.device + usage.cached.host + usage.cached.storage
    return f"[{usage.prompt_tokens} prompt tokens, {cached} of them cached; {usage.completion_tokens} new tokens]"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One chat turn over gRPC, streamed.")
    parser.add_argument("message")
    parser.add_argument("--target", default=os.environ.get("RADIXGATE_TARGET", "127.0.0.1:50051"), metavar="HOST:PORT")
    parser.add_argument("--key", default=os.environ.get("RADIXGATE_API_KEY"), help="or RADIXGATE_API_KEY")
    parser.add_argument("--model", default="", help="where several are served")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--ca", help="PEM file of the authorities that the gateway's certificate is from; turns TLS on")
    options = parser.parse_args()
    if not options.key:
        parser.error("no API key: give --key, or set RADIXGATE_API_KEY")
    return options


if __name__ == "__main__":
    sys.exit(main())
