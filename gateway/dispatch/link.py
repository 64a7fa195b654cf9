"""The gateway's one stream to one worker: connected, kept, and connected again."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from gateway.config import WorkerLinkConfig
from gateway.dispatch.adapters import ReportedAdapters
from gateway.dispatch.catalogue import Catalogue, ServedModel
from gateway.dispatch.pace import Pace
from gateway.dispatch.stream import TokenStream
from gateway.dispatch.worker_view import WorkerView
from gateway.errors import GatewayError, UnavailableError
from gateway.routing.router import Candidate
from hicache.keys import PrefixKey
from radixgate.v1 import worker_pb2, worker_pb2_grpc
from transport.client import ClientFiles, channel_credentials
from transport.pems import PemFiles

_log = structlog.get_logger(__name__)

_Connect = grpc.aio.StreamStreamCall[worker_pb2.ConnectRequest, worker_pb2.ConnectResponse]


class LinkObserver(Protocol):
    def worker_connected(self, worker: str) -> None: ...

    def worker_lost(self, worker: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamLimits:
    pace: Pace
    max_unread_bytes: int


class WorkerLink:
    """Owns the connection to one worker and the sequences on it.

    Invariant: a sequence is in `_streams` from its submit until it has ended or its cancel is on its way; while the
    link is down there are none.
    """

    def __init__(
        self,
        address: str,
        view: WorkerView,
        config: WorkerLinkConfig,
        limits: StreamLimits,
        catalogue: Catalogue,
        observer: LinkObserver,
        on_change: Callable[[], None],
    ) -> None:
        """`view` is of this worker, and of no other link. `on_change` is called whenever `model` has changed."""
        self.address = address
        self.model: ServedModel | None = None  # None while the link is down
        self.last_model = ""  # its name, also while the link is down
        self.adapters = ReportedAdapters()  # as last told, also while the link is down
        self.max_sequence_tokens = 0
        # Single calls over the connection; None while the link is down.
        self.calls: worker_pb2_grpc.WorkerServiceAsyncStub | None = None
        self._config = config
        self._limits = limits
        self._catalogue = catalogue
        self._observer = observer
        self._on_change = on_change
        self._streams: dict[int, TokenStream] = {}
        self._view = view
        self._next_sequence_id = 1
        self._outbox: asyncio.Queue[worker_pb2.ConnectRequest] = asyncio.Queue()
        self._next_attempt_at = 0.0

    # ------------------------------------------------------------------------------------------------- sequences

    @property
    def in_flight(self) -> int:
        """How many requests of this gateway the worker has now. From any thread."""
        return len(self._streams)

    def candidate(self) -> Candidate:
        return self._view.candidate(self.in_flight)

    def submit(self, submit: worker_pb2.Submit, key: PrefixKey) -> TokenStream:
        """Send a request on its way; its sequence id is set here. Raises UnavailableError while the link is down."""
        if self.model is None:
            raise _lost(self.address)
        sequence_id = self._next_sequence_id
        self._next_sequence_id += 1
        submit.sequence_id = sequence_id

        def closed(worker_is_done: bool) -> None:
            self._view.ended(sequence_id)
            if self._streams.pop(sequence_id, None) is not None and not worker_is_done:
                self._outbox.put_nowait(worker_pb2.ConnectRequest(cancel=worker_pb2.Cancel(sequence_id=sequence_id)))

        stream = TokenStream(
            closed,
            num_completions=submit.sampling.n,
            pace=self._limits.pace,
            max_unread_bytes=self._limits.max_unread_bytes,
        )
        self._streams[sequence_id] = stream
        self._view.sent(submit, key)
        self._outbox.put_nowait(worker_pb2.ConnectRequest(submit=submit))
        return stream

    def fail_all(self, error: GatewayError) -> None:
        """End every stream with `error`."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _deliver(self, message: worker_pb2.ConnectResponse) -> None:
        for request in self._view.told(message):
            self._outbox.put_nowait(request)
        # Before the news: a sequence may have been refused for an adapter that has changed.
        if message.HasField("adapters"):
            self.adapters = ReportedAdapters(message.adapters.adapters)
        for output in message.outputs:
            # Those of a cancelled sequence may come for a step or two longer.
            stream = self._streams.get(output.sequence_id)
            if stream is not None:
                self._view.heard(output)
                stream.feed(output)

    # ------------------------------------------------------------------------------------------------ connection

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        failures = 0
        while True:
            try:
                await self._serve()
                reason = "the worker closed the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except ValueError as error:
                reason = str(error)
            except TimeoutError:
                reason = f"the worker said nothing within {self._config.connect_timeout_s:g} s"
            except Exception as error:  # noqa: BLE001 - the link must come back whatever went wrong
                _log.exception("worker link failed", worker=self.address)
                reason = type(error).__name__
            finally:
                was_up = self._down()
            failures = 0 if was_up else failures + 1
            delay = self._backoff(failures)
            _log.warning("worker not connected", worker=self.address, reason=reason, retry_in_s=round(delay, 3))
            self._next_attempt_at = asyncio.get_running_loop().time() + delay
            await asyncio.sleep(delay)

    def next_attempt_in_s(self) -> float:
        """Return the time until this link, while down, tries to connect again; 0 while it is trying."""
        return max(0.0, self._next_attempt_at - asyncio.get_running_loop().time())

    def _backoff(self, failures: int) -> float:
        """Exponential, half of it at random: gateways must not all come back at the same moment."""
        ceiling = min(self._config.backoff_max_s, self._config.backoff_initial_s * 2.0 ** min(failures, 30))
        return ceiling * random.uniform(0.5, 1.0)

    async def _serve(self) -> None:
        """Connect and carry messages until the stream ends."""
        # A channel for each attempt: no cached back-off or name resolution of the last one.
        async with await _channel_to(self.address, self._config) as channel:
            stub: worker_pb2_grpc.WorkerServiceAsyncStub = worker_pb2_grpc.WorkerServiceStub(channel)
            described = await stub.GetModel(worker_pb2.GetModelRequest(), timeout=self._config.connect_timeout_s)
            model = await self._catalogue.learn(described)
            call: _Connect = stub.Connect()
            messages = aiter(call)
            async with asyncio.timeout(self._config.connect_timeout_s):
                first = await anext(messages, None)  # tells which adapters there are
            if first is None:
                return
            self._view.connected(described)
            self._deliver(first)
            self.calls = stub
            self._up(model, described)
            writer = asyncio.create_task(self._write(call), name=f"writer to {self.address}")
            try:
                async for message in messages:
                    self._deliver(message)
            finally:
                writer.cancel()
                call.cancel()

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
        self.max_sequence_tokens = min(described.max_sequence_tokens, described.context_length)
        _log.info("worker connected", worker=self.address, worker_id=described.worker_id, model=model.name)
        self._observer.worker_connected(self.address)
        self._on_change()

    def _down(self) -> bool:
        """Return whether the link was up."""
        if self.model is None:
            return False
        self.model = self.calls = None
        self._outbox = asyncio.Queue()
        self.fail_all(_lost(self.address))
        self._view.lost()
        self._observer.worker_lost(self.address)
        self._on_change()
        return True


def _lost(address: str) -> UnavailableError:
    return UnavailableError(
        "the connection to the worker was lost; tokens sent so far stand, no more will follow",
        reason="WORKER_LOST",
        metadata={"worker": address},
    )


async def _channel_to(address: str, config: WorkerLinkConfig) -> grpc.aio.Channel:
    """Raises ValueError, naming the file, for one that TLS cannot use."""
    options: list[tuple[str, int | str]] = [*_channel_options(config)]
    tls = config.tls
    if tls.ca_file is None:
        return grpc.aio.insecure_channel(address, options=options)
    own = PemFiles(tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
    # Read for each attempt: rotated files are in use with the next one.
    credentials = await asyncio.to_thread(channel_credentials, ClientFiles(tls.ca_file, own), time.time())
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, credentials, options=options)


def _channel_options(config: WorkerLinkConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_time_ms", int(config.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        # What gRPC really waits for the answer to a ping; a minute by default, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Tokenizers of tens of megabytes; prompts that the gateway's own limits have let in.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
