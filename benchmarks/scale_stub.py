"""Workers that compute nothing and tell much, for measuring what hearing them costs a gateway.

    python -m benchmarks.scale_stub --ready-file FILE --messages-per-s 20 --pages-per-s 800

One process serves under every loopback address, so one port is as many workers as a gateway is told addresses. Each
link tells `messages-per-s` times a second how busy it is and, evenly among these messages, `pages-per-s` pages stored
and, from `--held` on, as many removed: names that no other link has.
"""

import argparse
import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from tokenizers import Tokenizer, models

from radixgate.v1 import worker_pb2, worker_pb2_grpc

_CONTEXT: Final = 1 << 20
_NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Talk:
    """What each worker says."""

    messages_per_s: float
    pages_per_s: float
    held_pages: int


class TalkingWorker(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def GetModel(self, request: worker_pb2.GetModelRequest, context: Any) -> worker_pb2.GetModelResponse:  # noqa: N802
        return worker_pb2.GetModelResponse(
            worker_id="stub",
            model="stub",
            context_length=_CONTEXT,
            max_sequence_tokens=_CONTEXT,
            vocab_size=1000,
            page_size=1,
            tokenizer_json=Tokenizer(models.WordLevel({"w": 0}, unk_token="w")).to_str().encode(),
            model_revision="stub",
            name_seed=b"stub",
            name_page_size=64,
        )

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        load = worker_pb2.WorkerLoad(num_slots=1 << 20, prefill_tokens_per_s=50_000.0)
        yield worker_pb2.ConnectResponse(
            adapters=worker_pb2.AdapterSet(), load=load, digest=worker_pb2.CacheDigest(seq=0)
        )
        loop, interval_s = asyncio.get_running_loop(), 1 / self._talk.messages_per_s
        feed = _Feed(self._talk)
        due = loop.time() + interval_s * (id(context) % 97) / 97  # not all at the same moment
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += interval_s
            load.running_sequences = load.running_sequences % 32 + 1
            yield worker_pb2.ConnectResponse(load=load, cache_events=feed.events())


class _Feed:
    """The events of one link."""

    def __init__(self, talk: Talk) -> None:
        self._num_pages = round(talk.pages_per_s / talk.messages_per_s)
        self._held_pages = talk.held_pages
        self._held: deque[bytes] = deque()
        self._seq = 0

    def events(self) -> list[worker_pb2.CacheEvent]:
        if not self._num_pages:
            return []
        names = os.urandom(_NAME_BYTES * self._num_pages)
        self._held.append(names)
        told = [self._event(worker_pb2.CACHE_CHANGE_STORED, names)]
        if len(self._held) * self._num_pages > self._held_pages:
            told.append(self._event(worker_pb2.CACHE_CHANGE_REMOVED, self._held.popleft()))
        return told

    def _event(self, change: worker_pb2.CacheChange.ValueType, names: bytes) -> worker_pb2.CacheEvent:
        self._seq += 1
        return worker_pb2.CacheEvent(seq=self._seq, change=change, tier=worker_pb2.CACHE_TIER_DEVICE, names=names)


async def _serve(talk: Talk, ready_file: Path) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(TalkingWorker(talk), server)  # type: ignore[abstract]
    port = server.add_insecure_port("0.0.0.0:0")
    await server.start()
    _tell(ready_file, port)
    await server.wait_for_termination()


def _tell(ready_file: Path, port: int) -> None:
    ready_file.write_text(json.dumps({"port": port}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Workers that tell much.")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--messages-per-s", type=float, default=1.0)
    parser.add_argument("--pages-per-s", type=float, default=0.0)
    parser.add_argument("--held", type=int, default=16_384, help="pages (a million slots)")
    arguments = parser.parse_args()
    talk = Talk(arguments.messages_per_s, arguments.pages_per_s, arguments.held)
    asyncio.run(_serve(talk, arguments.ready_file))


if __name__ == "__main__":
    main()
