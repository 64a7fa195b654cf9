"""Several chat turns over gRPC at the same time, with asyncio: one channel carries them all.

    python chat_async.py --key KEY "Why is the sky blue?" "Why is grass green?"

Ctrl-C cancels what runs, and the workers stop computing it.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2, inference_pb2_grpc

MAX_TRIES = 3
LONGEST_WAIT_S = 60.0


@dataclass
class Answer:
    text: str = ""
    usage: inference_pb2.Usage | None = None


async def main() -> int:
    options = read_options()
    async with grpc.aio.insecure_channel(options.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        tasks = [asyncio.create_task(ask(stub, message, options)) for message in options.messages]
        try:
            for message, task in zip(options.messages, tasks, strict=True):
                answer = await task
                print(f"> {message}\n{answer.text}\n{summary(answer)}\n")
        except grpc.aio.AioRpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
        finally:
            for task in tasks:
                task.cancel()
    return 0


async def ask(
    stub: "inference_pb2_grpc.InferenceServiceAsyncStub", content: str, options: argparse.Namespace
) -> Answer:
    """Return an answer. Where the gateway says when to try again, before the first token, do that."""
    request = inference_pb2.GenerateRequest(
        model=options.model,
        chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="user", content=content)]),
        sampling=inference_pb2.SamplingParams(max_new_tokens=options.max_new_tokens, temperature=0),
    )
    for attempt in range(1, MAX_TRIES + 1):
        answer = Answer()
        try:
            call = stub.Generate(request, metadata=(("authorization", f"Bearer {options.key}"),), timeout=120)
            async for message in call:
                answer.text += message.text
                if message.HasField("usage"):
                    answer.usage = message.usage
        except grpc.aio.AioRpcError as error:
            wait_s = retry_delay_s(error)
            if answer.text or wait_s is None or wait_s > LONGEST_WAIT_S or attempt == MAX_TRIES:
                raise
            print(f"{error.details()}; trying again in {wait_s:g} s", file=sys.stderr)
            await asyncio.sleep(wait_s)
        else:
            return answer
    raise AssertionError("unreachable: the last try returns or raises")


def retry_delay_s(error: grpc.aio.AioRpcError) -> float | None:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # fits by shape
    for detail in () if status is None else status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToTimedelta().total_seconds())
    return None


def summary(answer: Answer) -> str:
    if answer.usage is None:
        return "[cut off]"
    cached = answer.usage.cached
    found = cached.device + cached.host + cached.storage
    return (
        f"[{answer.usage.prompt_tokens} prompt tokens, {found} of them cached; "
        f"{answer.usage.completion_tokens} new tokens]"
    )


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Several chat turns over gRPC at the same time.")
    parser.add_argument("messages", nargs="+", metavar="message")
    parser.add_argument("--target", default=os.environ.get("RADIXGATE_TARGET", "127.0.0.1:50051"), metavar="HOST:PORT")
    parser.add_argument("--key", default=os.environ.get("RADIXGATE_API_KEY"), help="or RADIXGATE_API_KEY")
    parser.add_argument("--model", default="", help="where several are served")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    if not options.key:
        parser.error("no API key: give --key, or set RADIXGATE_API_KEY")
    return options


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
