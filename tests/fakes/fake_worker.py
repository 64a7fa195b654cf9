"""A worker without a model: the real protocol over a real socket, a made-up next token, a made-up prefix cache.

The next token is a function of all tokens before it, so a sequence is the same on every FakeWorker; the cache keeps
whole prompts for each extra key and reports the longest common prefix. Tests decide when steps happen and what fails.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf import any_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2, worker_pb2, worker_pb2_grpc
from tests.fakes.tiny_tokenizer import CHATML, CONTROL_TOKENS, SPECIAL_TOKENS, tiny_tokenizer, tiny_tokenizer_json

MODEL = "tiny"


def next_token(token_ids: Sequence[int]) -> int:
    """Return the token that follows: never a control token."""
    vocab = tiny_tokenizer().get_vocab_size()
    first = len(CONTROL_TOKENS)
    return first + (sum(token_ids) * 31 + len(token_ids) * 7) % (vocab - first)


def completion(prompt: Sequence[int], num_tokens: int, index: int = 0) -> list[int]:
    """Return what a FakeWorker generates as the completion of this index."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token([*token_ids, *[1] * index]))
    return token_ids[len(prompt) :]


@dataclass
class RunningSequence:
    submit: worker_pb2.Submit
    link: "_Link"
    deadline: float | None
    token_ids: list[int]
    index: int = 0
    generated: int = 0
    leads: bool = True  # tells what is told once for all completions
    waits: int = 0  # steps until it begins

    @property
    def sequence_id(self) -> int:
        return self.submit.sequence_id


@dataclass
class _Link:
    outbox: "asyncio.Queue[worker_pb2.ConnectResponse]" = field(default_factory=asyncio.Queue)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Start with `async with`; `address` says where it listens."""

    def __init__(
        self,
        worker_id: str = "fake-0",
        *,
        model: str = MODEL,
        context_length: int = 512,
        max_sequence_tokens: int = 4096,
        tokens_per_step: int = 1,
        chat_template: str = CHATML,
    ) -> None:
        self.worker_id = worker_id
        self.address = ""
        self.submits: list[worker_pb2.Submit] = []
        self.cancels: list[int] = []
        self.drops: list[tuple[bytes, str]] = []  # namespaces: extra key, adapter revision
        self.drop_sizes: list[int] = []  # of each call
        self.loses_drops = 0  # calls that fail before they have done anything
        self.cache = worker_pb2.DescribeCacheResponse()  # what it says about its cache
        self.loads: list[worker_pb2.LoadAdapterRequest] = []
        self.unloads: list[worker_pb2.UnloadAdapterRequest] = []
        self.folders: dict[str, str] = {}  # the revision of what lies in a folder
        self.refuses_loads: str | None = None  # why, when set
        self.tokens_per_step = tokens_per_step
        self.failure: worker_pb2.SequenceError | None = None  # answer to every submit, when set
        self.admission: worker_pb2.Admission | None = None  # reported instead of the true one, when set
        self.logprobs = 0  # entries of `top` with every token
        self.adapters: list[worker_pb2.Adapter] = []  # told to gateways that connect; see `tell_adapters`
        self.keeps_quiet = False  # about its adapters, which gateways wait for
        self.load = worker_pb2.WorkerLoad(num_slots=4096)  # in every report, with how many run; see `report`
        self.refuses_continued = False
        self.late = 0  # steps after which the completions behind the first one begin
        self.tells_late = False  # that its adapters have changed: right before it refuses one that is gone
        self.model = worker_pb2.GetModelResponse(
            worker_id=worker_id,
            model=model,
            context_length=context_length,
            max_sequence_tokens=max_sequence_tokens,
            vocab_size=tiny_tokenizer().get_vocab_size(),
            page_size=1,
            tokenizer_json=tiny_tokenizer_json(),
            chat_template=chat_template,
            special_tokens=SPECIAL_TOKENS,
            eos_token_ids=[CONTROL_TOKENS.index("<|im_end|>")],
            model_revision="revision-1",
        )
        self._cache: dict[bytes, list[tuple[int, list[int]]]] = defaultdict(list)  # where a segment starts, its prompt
        self._running: list[RunningSequence] = []
        self._steps_allowed = asyncio.Event()
        self._steps_allowed.set()
        self._single_steps = 0
        self._work = asyncio.Event()
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._engine: asyncio.Task[None] | None = None
        self._links: list[_Link] = []

    # -------------------------------------------------------------------------------------------- what tests steer

    async def start(self, address: str = "127.0.0.1:0") -> Self:
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", -1),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 100),
            ]
        )
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        await self._server.start()
        self.address = f"127.0.0.1:{port}"
        self._engine = asyncio.create_task(self._run())
        return self

    async def kill(self) -> None:
        """Cut all connections now."""
        if self._engine is not None:
            self._engine.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._engine
            self._engine = None
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._running.clear()

    def hold(self) -> None:
        """No steps until `go` or `step`."""
        self._steps_allowed.clear()

    def go(self) -> None:
        self._steps_allowed.set()

    def step(self, num_steps: int = 1) -> None:
        """Allow this many steps while held."""
        self._single_steps += num_steps
        self._work.set()

    def lose_cache(self) -> None:
        """Have nothing cached, and tell nobody."""
        self._cache.clear()

    @property
    def num_links(self) -> int:
        return len(self._links)

    def tell_adapters(self, *adapters: worker_pb2.Adapter) -> None:
        """From now on these are there, and gateways are told so."""
        self.adapters = list(adapters)
        for link in self._links:
            link.outbox.put_nowait(self._adapter_set())

    def report(self, **load: float) -> None:
        """Report to all gateways, with these changes from now on."""
        for name, value in load.items():
            setattr(self.load, name, value)
        for link in self._links:
            link.outbox.put_nowait(worker_pb2.ConnectResponse(load=self._report()))

    def _report(self) -> worker_pb2.WorkerLoad:
        load = worker_pb2.WorkerLoad()
        load.CopyFrom(self.load)
        load.running_sequences = len(self._running)
        return load

    @property
    def num_running(self) -> int:
        return len(self._running)

    def end_all(self, code: worker_pb2.SequenceErrorCode.ValueType, field: str = "") -> None:
        """Every sequence fails."""
        sequences, self._running = self._running, []
        for sequence in sequences:
            self._send(sequence, error=worker_pb2.SequenceError(code=code, message="as the test wants it", field=field))

    async def until(self, condition: Any, timeout_s: float = 10.0) -> None:
        """Wait until `condition()` holds, looking whenever something has happened here."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *reason: object) -> None:
        await self.kill()

    # ------------------------------------------------------------------------------------------------ the protocol

    async def GetModel(  # noqa: N802
        self, request: worker_pb2.GetModelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.GetModelResponse:
        return self.model

    async def LoadAdapter(  # noqa: N802
        self, request: worker_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.LoadAdapterResponse:
        """The last part of the path is the revision, unless `folders` says another one."""
        self.loads.append(request)
        if self.refuses_loads is not None:
            await context.abort_with_status(_refusal(grpc.StatusCode.INVALID_ARGUMENT, "path", self.refuses_loads))
        adapter = worker_pb2.Adapter(
            name=request.name,
            revision=self.folders.get(request.path, request.path.rpartition("/")[2]),
            tenants=sorted(request.tenants),
            load_time=Timestamp(seconds=int(time.time())),
        )
        others = [each for each in self.adapters if not _same(each, adapter.name, adapter.tenants, adapter.revision)]
        if not request.beside:
            others = [each for each in others if not _same(each, adapter.name, adapter.tenants)]
        self.tell_adapters(*others, adapter)
        return worker_pb2.LoadAdapterResponse(adapter=adapter)

    async def UnloadAdapter(  # noqa: N802
        self, request: worker_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.UnloadAdapterResponse:
        """Whatever still uses the adapter fails when the grace is over."""
        self.unloads.append(request)
        gone = [each for each in self.adapters if _same(each, request.name, request.tenants, request.revision)]
        if not gone:
            await context.abort_with_status(_refusal(grpc.StatusCode.NOT_FOUND, "", "not loaded"))
        self.tell_adapters(*(each for each in self.adapters if each not in gone))
        revisions = {each.revision for each in gone}

        def users() -> list[RunningSequence]:
            return [each for each in self._running if each.submit.adapter_revision in revisions]

        with contextlib.suppress(TimeoutError):
            await self.until(lambda: not users(), request.grace_ms / 1000 or 30.0)
        failed = users()
        for sequence in failed:
            self._running.remove(sequence)
            code = worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
            self._send(sequence, error=worker_pb2.SequenceError(code=code, message="unloaded", field="adapter"))
        return worker_pb2.UnloadAdapterResponse(failed_sequences=len(failed))

    async def ListAdapters(  # noqa: N802
        self, request: worker_pb2.ListAdaptersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.ListAdaptersResponse:
        return worker_pb2.ListAdaptersResponse(adapters=self.adapters)

    async def DropCache(  # noqa: N802
        self, request: worker_pb2.DropCacheRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DropCacheResponse:
        if self.loses_drops:
            self.loses_drops -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test wants it")
        self.drop_sizes.append(len(request.namespaces))
        self.drops.extend((each.extra_key, each.adapter_revision) for each in request.namespaces)
        entries = [entry for each in request.namespaces for entry in self._cache.pop(each.extra_key, [])]
        return worker_pb2.DropCacheResponse(device_tokens=sum(len(ids) - start for start, ids in entries))

    async def DescribeCache(  # noqa: N802
        self, request: worker_pb2.DescribeCacheRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.DescribeCacheResponse:
        return self.cache

    async def Connect(  # noqa: N802
        self,
        request_iterator: AsyncIterator[worker_pb2.ConnectRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        link = _Link()
        self._links.append(link)
        if not self.keeps_quiet:
            link.outbox.put_nowait(self._adapter_set())
        reader = asyncio.create_task(self._read(request_iterator, link))
        try:
            while True:
                yield await link.outbox.get()
        finally:
            self._links.remove(link)
            reader.cancel()
            self._running = [sequence for sequence in self._running if sequence.link is not link]
            self._changed.set()

    async def _read(self, requests: AsyncIterator[worker_pb2.ConnectRequest], link: _Link) -> None:
        async for request in requests:
            if request.WhichOneof("message") == "submit":
                self._submitted(request.submit, link)
            else:
                self._cancelled(request.cancel.sequence_id, link)
            self._changed.set()

    def _submitted(self, submit: worker_pb2.Submit, link: _Link) -> None:
        self.submits.append(submit)
        token_ids = [token_id for segment in submit.prompt for token_id in segment.token_ids]
        deadline = time.monotonic() + submit.timeout_ms / 1000 if submit.timeout_ms else None
        begun = {each.index: list(each.token_ids) for each in submit.continued}
        sequences = [
            RunningSequence(
                submit,
                link,
                deadline,
                token_ids + begun.get(index, []),
                index,
                generated=len(begun.get(index, [])),
                leads=place == 0,
                waits=self.late if place else 0,
            )
            for place, index in enumerate(sorted(begun) or range(submit.sampling.n))
        ]
        if fault := self._fault_of(submit):
            code = worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT
            self._send(sequences[0], error=worker_pb2.SequenceError(code=code, message=fault, field="continued"))
            return
        if self.failure is not None:
            self._send(sequences[0], error=self.failure)
            return
        if submit.adapter and not self._has_adapter(submit):
            if self.tells_late:
                link.outbox.put_nowait(self._adapter_set())
            error = worker_pb2.SequenceError(
                code=worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, message="no such adapter", field="adapter"
            )
            self._send(sequences[0], error=error)
            return
        self._running.extend(sequences)
        self._work.set()

    def _fault_of(self, submit: worker_pb2.Submit) -> str | None:
        """Return what is wrong with the completions that are to go on here."""
        indices = [each.index for each in submit.continued]
        if indices and self.refuses_continued:
            return "as the test wants it"
        if len(set(indices)) < len(indices) or not set(indices) <= set(range(submit.sampling.n)):
            return "completions that there are not, or twice"
        if any(not 1 <= len(each.token_ids) < submit.sampling.max_new_tokens for each in submit.continued):
            return "completions that have not begun, or have ended"
        return None

    def _has_adapter(self, submit: worker_pb2.Submit) -> bool:
        return any(
            (adapter.name, adapter.revision) == (submit.adapter, submit.adapter_revision)
            and (not adapter.tenants or submit.tenant in adapter.tenants)
            for adapter in self.adapters
        )

    def _adapter_set(self) -> worker_pb2.ConnectResponse:
        return worker_pb2.ConnectResponse(adapters=worker_pb2.AdapterSet(adapters=self.adapters))

    def _cancelled(self, sequence_id: int, link: _Link) -> None:
        self.cancels.append(sequence_id)
        for sequence in list(self._running):
            if sequence.link is link and sequence.sequence_id == sequence_id:
                self._running.remove(sequence)
                error = worker_pb2.SequenceError(
                    code=worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED, message="cancelled by the gateway"
                )
                self._send(sequence, error=error)

    # --------------------------------------------------------------------------------------------------- the model

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            if not self._steps_allowed.is_set() and self._single_steps == 0:
                self._work.clear()
                waits = {asyncio.ensure_future(self._steps_allowed.wait()), asyncio.ensure_future(self._work.wait())}
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                self._work.set()
                continue
            self._single_steps = max(0, self._single_steps - 1)
            self._step()
            if not self._running:
                self._work.clear()
            self._changed.set()
            await asyncio.sleep(0)

    def _step(self) -> None:
        messages: dict[int, tuple[_Link, worker_pb2.ConnectResponse]] = {}
        load = self._report()
        for sequence in list(self._running):
            if sequence.waits:
                sequence.waits -= 1
                continue
            _, message = messages.setdefault(id(sequence.link), (sequence.link, worker_pb2.ConnectResponse(load=load)))
            output = self._advance(sequence)
            message.outputs.append(output)
            if output.WhichOneof("end") is not None:
                self._running.remove(sequence)
        for link, message in messages.values():
            link.outbox.put_nowait(message)

    def _advance(self, sequence: RunningSequence) -> worker_pb2.SequenceOutput:
        output = worker_pb2.SequenceOutput(sequence_id=sequence.sequence_id, index=sequence.index)
        if sequence.deadline is not None and time.monotonic() > sequence.deadline:
            output.error.code = worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED
            output.error.message = "the deadline has passed"
            return output
        if sequence.leads:
            sequence.leads = False
            if sequence.submit.sampling.HasField("prompt_logprobs") and not sequence.submit.continued:
                for position in range(1, len(sequence.token_ids)):
                    output.prompt_logprobs.add(logprob=-float(position))
            output.admission.CopyFrom(self.admission or self._admit(sequence))
        sampling = sequence.submit.sampling
        for _ in range(self.tokens_per_step):
            token_id = next_token([*sequence.token_ids, *[1] * sequence.index])
            sequence.token_ids.append(token_id)
            sequence.generated += 1
            output.token_ids.append(token_id)
            if self.logprobs:
                top = [inference_pb2.TopLogprob(token_id=i, logprob=-1.0) for i in range(self.logprobs)]
                output.logprobs.append(inference_pb2.TokenLogprobs(logprob=-0.5, top=top))
            if token_id in sampling.stop_token_ids:
                output.finish_reason = inference_pb2.FINISH_REASON_STOP
                break
            if sequence.generated >= sampling.max_new_tokens:
                output.finish_reason = inference_pb2.FINISH_REASON_LENGTH
                break
        output.text = f" {'.'.join(map(str, output.token_ids))}"
        return output

    def _admit(self, sequence: RunningSequence) -> worker_pb2.Admission:
        """Each segment lies in its own namespace, below exactly what stands before it."""
        prompt = list(sequence.token_ids)
        hit = end = 0
        for segment in sequence.submit.prompt:
            start, end = end, end + len(segment.token_ids)
            entries = self._cache[segment.extra_key]
            found = [_common_prefix(ids, prompt[:end]) for begins, ids in entries if begins == start]
            if hit == start:
                hit = max([hit, *found])
            entries.append((start, prompt[:end]))
        cached = inference_pb2.CachedTokens(device=min(hit, len(prompt) - 1))
        return worker_pb2.Admission(prompt_tokens=len(prompt), cached=cached)

    def _send(self, sequence: RunningSequence, *, error: worker_pb2.SequenceError) -> None:
        output = worker_pb2.SequenceOutput(sequence_id=sequence.sequence_id, error=error, index=sequence.index)
        sequence.link.outbox.put_nowait(worker_pb2.ConnectResponse(outputs=[output]))


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _same(adapter: worker_pb2.Adapter, name: str, tenants: Iterable[str], revision: str = "") -> bool:
    """Whether it is what is meant; "" is any revision."""
    return (adapter.name, sorted(adapter.tenants)) == (name, sorted(tenants)) and revision in {"", adapter.revision}


def _refusal(code: grpc.StatusCode, field: str, message: str) -> grpc.Status:
    details = []
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        details.append(any_pb2.Any())
        details[0].Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=details))
