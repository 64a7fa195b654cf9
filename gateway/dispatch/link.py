"""The gateway's one stream to one worker: connected, kept, and connected again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import structlog

from gateway.config import WorkerLinkConfig
from gateway.dispatch.adapters import ReportedAdapters
from gateway.dispatch.backoff import backoff_s
from gateway.dispatch.catalogue import Catalogue, ServedModel
from gateway.dispatch.health import WorkerHealth
from gateway.dispatch.pulse import Sign
from gateway.dispatch.verdicts import Fault, verdict_on
from gateway.dispatch.worker_channel import channel_to, first_of
from gateway.dispatch.worker_view import WorkerView
from gateway.errors import NoWorkerError
from gateway.routing.router import Candidate
from hicache.keys import PrefixKey
from radixgate.v1 import worker_pb2, worker_pb2_grpc

_log = structlog.get_logger(__name__)

_Connect = grpc.aio.StreamStreamCall[worker_pb2.ConnectRequest, worker_pb2.ConnectResponse]

_LOOKS_EVERY_S: Final = 0.5  # at a worker's signs of life; more often where silence is to be noticed sooner


class LinkObserver(Protocol):
    def worker_connected(self, worker: str) -> None: ...

    def worker_lost(self, worker: str) -> None: ...


class Recipient(Protocol):
    """Who is told of one sequence. After `lost`, or an output that is an error, nothing more."""

    def heard(self, output: worker_pb2.SequenceOutput) -> None: ...

    def lost(self, fault: Fault) -> None:
        """The worker will say nothing more, or is not listened to any longer."""
        ...


@dataclass(slots=True)
class _UnderWay:
    recipient: Recipient
    permit: int  # of the worker's health
    begun: bool = False  # it has had tokens


class _SilentError(Exception):
    """The worker says nothing any more."""


class WorkerLink:
    """Owns the connection to one worker and the sequences on it.

    Invariant: a sequence is in `_under_way` from its submit until it has ended, its recipient has said that it has, or
    its cancel is on its way; while the link is down there are none.
    """

    def __init__(
        self,
        address: str,
        view: WorkerView,
        health: WorkerHealth,
        config: WorkerLinkConfig,
        catalogue: Catalogue,
        observer: LinkObserver,
        on_change: Callable[[], None],
    ) -> None:
        """`view` and `health` are of this worker, and of no other link. `on_change` is called whenever `model` has
        changed.
        """
        self.address = address
        self.health = health
        self.model: ServedModel | None = None  # None while the link is down
        self.last_model = ""  # its name, also while the link is down
        self.adapters = ReportedAdapters()  # as last told, also while the link is down
        self.max_sequence_tokens = 0
        self.connection = 0  # which one it is, or was last: a process that comes back is another one
        # Single calls over the connection; None while the link is down.
        self.calls: worker_pb2_grpc.WorkerServiceAsyncStub | None = None
        self._view = view
        self._config = config
        self._catalogue = catalogue
        self._observer = observer
        self._on_change = on_change
        self._under_way: dict[int, _UnderWay] = {}
        self._next_sequence_id = 1
        self._outbox: asyncio.Queue[worker_pb2.ConnectRequest] = asyncio.Queue()
        self._next_attempt_at = 0.0

    # ------------------------------------------------------------------------------------------------- sequences

    @property
    def in_flight(self) -> int:
        """How many requests of this gateway the worker has now. From any thread."""
        return len(self._under_way)

    @property
    def takes_requests(self) -> bool:
        return self.model is not None and self.health.takes_requests

    @property
    def expected_wait_s(self) -> float | None:
        """How long the worker is busy with prompts that it has, or is sent; None where it has not told its speed."""
        candidate = self.candidate()
        return candidate.wait_s if candidate.prefill_tokens_per_s > 0 else None

    def candidate(self) -> Candidate:
        return self._view.candidate(self.in_flight)

    def submit(self, submit: worker_pb2.Submit, key: PrefixKey, recipient: Recipient) -> int:
        """Send a request on its way; its sequence id is set here, and returned. Ids are never used twice.

        `key` is what the worker is to compute first. Raises NoWorkerError while the link is down.
        """
        if self.model is None:
            raise NoWorkerError(f"worker {self.address} is not connected")
        sequence_id = self._next_sequence_id
        self._next_sequence_id += 1
        submit.sequence_id = sequence_id
        self._under_way[sequence_id] = _UnderWay(recipient, self.health.sent())
        self._view.sent(submit, key)
        self._outbox.put_nowait(worker_pb2.ConnectRequest(submit=submit))
        return sequence_id

    def done(self, sequence_id: int) -> None:
        """All of a sequence has ended well. Without effect once it is not under way."""
        if (sequence := self._end(sequence_id)) is not None:
            self.health.finished(sequence.permit)

    def cancel(self, sequence_id: int) -> None:
        """Nobody wants a sequence any more. Without effect once it is not under way."""
        if (sequence := self._end(sequence_id)) is not None:
            self.health.abandoned(sequence.permit)
            self._send_cancel(sequence_id)

    def _end(self, sequence_id: int) -> _UnderWay | None:
        sequence = self._under_way.pop(sequence_id, None)
        if sequence is not None:
            self._view.ended(sequence_id)
        return sequence

    def _send_cancel(self, sequence_id: int) -> None:
        self._outbox.put_nowait(worker_pb2.ConnectRequest(cancel=worker_pb2.Cancel(sequence_id=sequence_id)))

    def _deliver(self, message: worker_pb2.ConnectResponse) -> None:
        for request in self._view.told(message):
            self._outbox.put_nowait(request)
        # Before the news: a sequence may have been refused for an adapter that has changed.
        if message.HasField("adapters"):
            self.adapters = ReportedAdapters(message.adapters.adapters)
        for output in message.outputs:
            # Those of a cancelled sequence may come for a step or two longer.
            sequence = self._under_way.get(output.sequence_id)
            if sequence is not None:
                self._view.heard(output)
                self._judge(output, sequence)
                sequence.recipient.heard(output)
        if self.health.heard(message) is Sign.STALLED:
            self._stalled()

    def _judge(self, output: worker_pb2.SequenceOutput, sequence: _UnderWay) -> None:
        """See what a sequence's news say about the worker."""
        if output.WhichOneof("end") == "error":
            self._end(output.sequence_id)
            failed = verdict_on(output.error).fault is Fault.FAILED
            (self.health.failed if failed else self.health.abandoned)(sequence.permit)
        elif output.token_ids and not sequence.begun:
            sequence.begun = True
            self.health.answered(sequence.permit)

    def _stalled(self) -> None:
        """Whatever the worker still says of its sequences, they go on elsewhere."""
        _log.warning("worker stalled", worker=self.address, sequences=len(self._under_way))
        for sequence_id in list(self._under_way):
            sequence = self._end(sequence_id)
            if sequence is not None:
                self.health.failed(sequence.permit)
                self._send_cancel(sequence_id)
                sequence.recipient.lost(Fault.STALLED)

    # ------------------------------------------------------------------------------------------------ connection

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        failures = 0
        while True:
            fault = Fault.LOST
            try:
                await self._serve()
                reason = "the worker closed the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except ValueError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"the worker said nothing within {self._config.connect_timeout_s:g} s"
            except _SilentError:
                fault = Fault.SILENT
                reason = f"the worker, which reports regularly, said nothing for {self._config.silence_s:g} s"
            except Exception as error:  # noqa: BLE001 - the link must come back whatever went wrong
                _log.exception("worker link failed", worker=self.address)
                reason = type(error).__name__
            finally:
                was_up = self._down(fault)
            failures = 0 if was_up else failures + 1
            delay = backoff_s(self._config.backoff_initial_s, self._config.backoff_max_s, failures, at_least=0.5)
            _log.warning("worker not connected", worker=self.address, reason=reason, retry_in_s=round(delay, 3))
            self._next_attempt_at = asyncio.get_running_loop().time() + delay
            await asyncio.sleep(delay)

    def next_attempt_in_s(self) -> float:
        """Return the time until this link, while down, tries to connect again; 0 while it is trying."""
        return max(0.0, self._next_attempt_at - asyncio.get_running_loop().time())

    async def _serve(self) -> None:
        """Connect and carry messages until the stream ends."""
        # A channel for each attempt: no cached back-off or name resolution of the last one.
        async with await channel_to(self.address, self._config) as channel:
            stub: worker_pb2_grpc.WorkerServiceAsyncStub = worker_pb2_grpc.WorkerServiceStub(channel)
            call: _Connect = stub.Connect()
            first = await first_of(call, self._config.connect_timeout_s)  # tells which adapters there are
            if first is None:
                return
            # Behind the stream, which ends with its process: one that takes over the address in between would be
            # described by the one before it, and get requests for a model that it does not have.
            described = await stub.GetModel(worker_pb2.GetModelRequest(), timeout=self._config.connect_timeout_s)
            model = await self._catalogue.learn(described)
            if call.done():
                return
            self._view.connected(described)
            self.health.connected()
            self._deliver(first)
            self.calls = stub
            self._up(model, described)
            writer = asyncio.create_task(self._write(call), name=f"writer to {self.address}")
            try:
                await self._read(call)
            finally:
                writer.cancel()
                call.cancel()

    async def _read(self, call: _Connect) -> None:
        """Raises _SilentError when the worker says nothing any more."""
        try:
            async with asyncio.timeout(None) as silence:
                watcher = asyncio.create_task(self._watch(silence), name=f"watch over {self.address}")
                try:
                    async for message in call:
                        self._deliver(message)
                finally:
                    watcher.cancel()
        except TimeoutError:
            raise _SilentError from None

    async def _watch(self, silence: asyncio.Timeout) -> None:
        """Look at the worker's signs of life, and end `silence` where there are none."""
        loop, config = asyncio.get_running_loop(), self._config
        tick_s = min(_LOOKS_EVERY_S, config.silence_s / 4, config.stall_s / 4)
        while True:
            slept_at = loop.time()
            await asyncio.sleep(tick_s)
            # A gateway that was held up itself has not listened: that is no silence of the worker.
            passed_s = min(loop.time() - slept_at, 2 * tick_s)
            begun = sum(sequence.begun for sequence in self._under_way.values())
            sign = self.health.passed(passed_s, begun)
            if sign is Sign.STALLED:
                self._stalled()
            elif sign is Sign.SILENT:
                silence.reschedule(loop.time())
                return

    async def _write(self, call: _Connect) -> None:
        while True:
            request = await self._outbox.get()
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the stream has ended, as its reader is about to see

    def _up(self, model: ServedModel, described: worker_pb2.GetModelResponse) -> None:
        self.model = model
        self.last_model = model.name
        self.connection += 1
        self.max_sequence_tokens = min(described.max_sequence_tokens, described.context_length)
        _log.info("worker connected", worker=self.address, worker_id=described.worker_id, model=model.name)
        self._observer.worker_connected(self.address)
        self._on_change()

    def _down(self, fault: Fault) -> bool:
        """Return whether the link was up."""
        self._outbox = asyncio.Queue()
        if self.model is None:
            self._view.lost()  # which may have been connected, where what came first could not be taken
            return False
        self.model = self.calls = None
        if self._under_way:  # one fault, however many requests the worker had
            self.health.failed(max(sequence.permit for sequence in self._under_way.values()))
        for sequence_id in list(self._under_way):
            sequence = self._end(sequence_id)
            if sequence is not None:
                sequence.recipient.lost(fault)
        self._view.lost()
        self._observer.worker_lost(self.address)
        self._on_change()
        return True
