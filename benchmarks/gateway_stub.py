"""A worker without a model, for measuring what stands in front of it: tokens come on time, and cost next to nothing.

    python -m benchmarks.gateway_stub --ready-file FILE [--rate 50]

Speaks the workers' private protocol, for gateways, and the clients' own, message by token, for proxies that pass
messages on and for asking it directly. All sequences take part in one step each 1/rate seconds, as in an engine.
`--rate 0`: a step follows the other.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from tokenizers import Tokenizer, models, pre_tokenizers

from radixgate.v1 import inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc

MODEL = "stub"
VOCABULARY = 1_000
CONTEXT = 1 << 20
_TEXT = " word"


@dataclass
class Sequence:
    """One answer under way; `outbox` is where its reader waits."""

    sequence_id: int
    prompt_tokens: int
    remaining: int
    outbox: "asyncio.Queue[Any]"
    begun: bool = False


@dataclass
class Link:
    """One gateway's stream: all its sequences share an outbox."""

    outbox: "asyncio.Queue[worker_pb2.ConnectResponse]" = field(default_factory=asyncio.Queue)
    sequences: dict[int, Sequence] = field(default_factory=dict)


class Clock:
    """Steps of everything that runs: `rate` a second, or as fast as readers allow."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.links: set[Link] = set()
        self.direct: set[Sequence] = set()
        self._work = asyncio.Event()

    def wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            due = loop.time()  # whoever comes to an idle engine does not wait
            self._step()
            while self._busy():
                due = max(due + 1 / self._rate, loop.time()) if self._rate else 0.0
                await asyncio.sleep(max(0.0, due - loop.time()) if self._rate else 0)
                self._step()
            self._work.clear()

    def _busy(self) -> bool:
        return bool(self.direct) or any(link.sequences for link in self.links)

    def _step(self) -> None:
        for link in self.links:
            if link.sequences and (self._rate or link.outbox.qsize() < 4):
                outputs = [_output(sequence) for sequence in link.sequences.values()]
                link.sequences = {key: each for key, each in link.sequences.items() if each.remaining}
                link.outbox.put_nowait(worker_pb2.ConnectResponse(outputs=outputs))
        for sequence in list(self.direct):
            if self._rate or sequence.outbox.qsize() < 4:
                sequence.outbox.put_nowait(_response(sequence))
                if not sequence.remaining:
                    self.direct.discard(sequence)


def _output(sequence: Sequence) -> worker_pb2.SequenceOutput:
    sequence.remaining -= 1
    output = worker_pb2.SequenceOutput(sequence_id=sequence.sequence_id, token_ids=[7], text=_TEXT)
    if not sequence.begun:
        sequence.begun = True
        output.admission.prompt_tokens = sequence.prompt_tokens
        output.admission.cached.device = 0
    if not sequence.remaining:
        output.finish_reason = inference_pb2.FINISH_REASON_LENGTH
    return output


def _response(sequence: Sequence) -> inference_pb2.GenerateResponse:
    sequence.remaining -= 1
    response = inference_pb2.GenerateResponse(token_ids=[7], text=_TEXT)
    if not sequence.remaining:
        response.finish_reason = inference_pb2.FINISH_REASON_LENGTH
    return response


class Worker(worker_pb2_grpc.WorkerServiceServicer):
    """What a gateway sees. Calls that no measurement makes are left out: they get UNIMPLEMENTED."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def GetModel(self, request: worker_pb2.GetModelRequest, context: Any) -> worker_pb2.GetModelResponse:  # noqa: N802
        vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        return worker_pb2.GetModelResponse(
            worker_id="stub",
            model=MODEL,
            context_length=CONTEXT,
            max_sequence_tokens=CONTEXT,
            vocab_size=VOCABULARY,
            page_size=1,
            tokenizer_json=tokenizer.to_str().encode(),
            model_revision="stub",
        )

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        link = _HashableLink()
        link.outbox.put_nowait(worker_pb2.ConnectResponse(adapters=worker_pb2.AdapterSet()))
        self._clock.links.add(link)
        reader = asyncio.create_task(self._read(link, request_iterator))
        try:
            while True:
                yield await link.outbox.get()
        finally:
            self._clock.links.discard(link)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self, link: Link, requests: AsyncIterator[worker_pb2.ConnectRequest]) -> None:
        async for request in requests:
            if request.HasField("submit"):
                submit = request.submit
                prompt_tokens = sum(len(segment.token_ids) for segment in submit.prompt)
                sequence = Sequence(submit.sequence_id, prompt_tokens, submit.sampling.max_new_tokens, link.outbox)
                link.sequences[sequence.sequence_id] = sequence
                self._clock.wake()
            else:
                link.sequences.pop(request.cancel.sequence_id, None)


class _HashableLink(Link):
    __hash__ = object.__hash__


class _HashableSequence(Sequence):
    __hash__ = object.__hash__


class Direct(inference_pb2_grpc.InferenceServiceServicer):
    """The clients' own service, a message for each token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        sequence = _HashableSequence(0, 0, request.sampling.max_new_tokens, asyncio.Queue())
        self._clock.direct.add(sequence)
        self._clock.wake()
        try:
            while True:
                response = await sequence.outbox.get()
                yield response
                if response.finish_reason:
                    return
        finally:
            self._clock.direct.discard(sequence)


async def _serve(rate: float, ready_file: Path) -> None:
    clock = Clock(rate)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(Worker(clock), server)  # type: ignore[abstract]
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Direct(clock), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.to_thread(ready_file.write_text, json.dumps({"grpc": f"127.0.0.1:{port}"}))
    await clock.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.rate, arguments.ready_file))


if __name__ == "__main__":
    main()
