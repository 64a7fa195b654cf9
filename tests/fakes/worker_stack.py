"""A whole worker over real sockets around a model that is a fake, and a gateway's end of a link to it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from radixgate.v1 import inference_pb2, worker_pb2, worker_pb2_grpc
from tests.fakes.model import FakeModel
from worker.app import ServedModel, WorkerAddresses, WorkerApp
from worker.config import CacheConfig, EngineConfig, WorkerConfig

PATIENCE_S = 60.0  # of a busy machine
KEY_A = bytes(16)


def config(num_slots: int = 512, **engine: int) -> WorkerConfig:
    return WorkerConfig(
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        cache=CacheConfig(num_slots=num_slots),
        engine=EngineConfig(check=True, **engine),  # type: ignore[arg-type]
    )


@asynccontextmanager
async def running_worker(
    worker_config: WorkerConfig, model: ServedModel | None = None
) -> AsyncIterator[tuple[WorkerApp, WorkerAddresses]]:
    app = WorkerApp(worker_config, model or FakeModel())
    addresses = await app.start()
    try:
        yield app, addresses
    finally:
        await app.stop(drain_timeout_s=0.0)


class Gateway:
    """The gateway's end of one link: sends submits and cancels, collects the news of each sequence."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._call = self.stub.Connect()
        self.news: list[worker_pb2.SequenceOutput] = []
        self.sizes: list[int] = []  # how many sequences each message has news of
        self.adapters: list[worker_pb2.AdapterSet] = []  # as they were told, the last one is true
        self._arrived = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def submit(
        self,
        sequence_id: int,
        tokens: list[int],
        extra_key: bytes = KEY_A,
        max_new_tokens: int = 4,
        timeout_ms: int = 0,
        adapter: str = "",
        adapter_revision: str = "",
        tenant: str = "acme",
        *,
        continued: Mapping[int, Sequence[int]] | None = None,
        **sampling: Any,
    ) -> None:
        """`continued` are the tokens of completions that go on, by index."""
        params = {"max_new_tokens": max_new_tokens, "ignore_eos": True, **sampling}
        submit = worker_pb2.Submit(
            sequence_id=sequence_id,
            request_id=f"r{sequence_id}",
            prompt=[worker_pb2.PromptSegment(extra_key=extra_key, token_ids=tokens)],
            tenant=tenant,
            adapter=adapter,
            adapter_revision=adapter_revision,
            sampling=inference_pb2.SamplingParams(**params),
            timeout_ms=timeout_ms,
            continued=[
                worker_pb2.ContinuedCompletion(index=index, token_ids=token_ids)
                for index, token_ids in (continued or {}).items()
            ],
        )
        await self._call.write(worker_pb2.ConnectRequest(submit=submit))

    async def cancel(self, sequence_id: int) -> None:
        await self._call.write(worker_pb2.ConnectRequest(cancel=worker_pb2.Cancel(sequence_id=sequence_id)))

    def of(self, sequence_id: int) -> list[worker_pb2.SequenceOutput]:
        return [output for output in self.news if output.sequence_id == sequence_id]

    def tokens(self, sequence_id: int) -> list[int]:
        return [token for output in self.of(sequence_id) for token in output.token_ids]

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.news)

    def admission(self, sequence_id: int) -> worker_pb2.Admission:
        (output,) = [output for output in self.of(sequence_id) if output.HasField("admission")]
        return output.admission

    async def end(self, sequence_id: int) -> worker_pb2.SequenceOutput:
        """Wait for the last output of a sequence and return it."""
        await self.until(lambda: any(output.WhichOneof("end") for output in self.of(sequence_id)))
        return self.of(sequence_id)[-1]

    async def until(self, condition: object) -> None:
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(condition), PATIENCE_S)  # type: ignore[arg-type]

    async def ended(self) -> None:
        """Wait until the worker ends the stream."""
        await asyncio.wait_for(self._reader, PATIENCE_S)

    async def close(self) -> None:
        self._reader.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        async for message in self._call:
            async with self._arrived:
                self.news.extend(message.outputs)
                if message.outputs:
                    self.sizes.append(len(message.outputs))
                if message.HasField("adapters"):
                    self.adapters.append(message.adapters)
                self._arrived.notify_all()


async def idle(app: WorkerApp) -> None:
    """Wait until nothing runs or waits, and every slot is free or evictable."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            load = app.load()
            if load.running == load.waiting == 0 and load.free_slots + load.evictable_slots == load.num_slots:
                return
            await asyncio.sleep(0.01)
