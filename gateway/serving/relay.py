"""Passes one request's deltas on to its client, keeps its account, and tells how it went."""

import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

import structlog

from gateway.dispatch.generation import Generation
from gateway.dispatch.stream import Delta, TokenStream
from gateway.errors import InternalError
from gateway.quota.accounts import Account
from gateway.serving.traced import finish_word, used
from radixgate.v1 import inference_pb2, worker_pb2
from tracing.calls import CallTrace, Stage
from tracing.spans import Attributes

_log = structlog.get_logger(__name__)


Write = Callable[[inference_pb2.GenerateResponse], Awaitable[None]]


class StreamObserver(Protocol):
    def stream_opened(self, tenant: str) -> None: ...

    def stream_closed(self, tenant: str) -> None: ...

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None: ...

    def public_prefix_met(self, tenant: str, model: str, adapter: str, prefix_tokens: int, cached: int) -> None: ...

    def first_message(self, tenant: str, model: str, seconds: float) -> None: ...

    def next_message(self, tenant: str, model: str, seconds: float) -> None: ...

    def stream_finished(
        self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float
    ) -> None: ...


async def relay(
    stream: TokenStream,
    generation: Generation,
    report: "StreamReport",
    write: Write,
) -> None:
    """Pass deltas on until all completions are finished. Raises the GatewayError that they end with otherwise."""
    usage: inference_pb2.Usage | None = None
    unfinished = generation.sampling.n
    while unfinished:
        delta = await stream.take()
        message = delta.message(generation.request_id)
        message.simulated = stream.simulated
        report.account.completion_tokens += delta.num_tokens
        if delta.admission is not None and usage is None:
            usage = _usage(delta.admission, generation)
            report.admitted(usage)
        if delta.finished:
            unfinished -= 1
            report.finish_reasons.append(finish_word(delta.finish_reason))
        if not unfinished:
            if usage is None:
                raise InternalError("the worker finished a request that it never admitted", reason="WORKER_FAILED")
            usage.completion_tokens = report.account.completion_tokens
            message.usage.CopyFrom(usage)
        if delta.finished or message.token_ids or message.text or message.prompt_logprobs:
            await write(message)
            report.sent(delta)
    report.finished()


def _usage(admission: worker_pb2.Admission, generation: Generation) -> inference_pb2.Usage:
    """Return the prompt's part of the usage. Accounts that do not add up are a fault of the worker, not a rounding."""
    cached, prompt_tokens = admission.cached, generation.prompt_tokens
    tiers = (cached.device, cached.host, cached.storage)
    if admission.prompt_tokens != prompt_tokens or min(tiers) < 0 or sum(tiers) > prompt_tokens:
        raise InternalError("the worker's account of the prompt does not add up", reason="WORKER_FAILED")
    return inference_pb2.Usage(
        prompt_tokens=prompt_tokens,
        cached=cached,
        computed_prompt_tokens=prompt_tokens - sum(tiers),
        public_prefix_tokens=generation.public_tokens,
        cached_public_tokens=min(sum(tiers), generation.public_tokens),  # cached tokens are the leading ones
    )


class StreamReport:
    """Tells the observer and the log about one stream. A context from submit to whatever end it comes to."""

    def __init__(
        self,
        observer: StreamObserver,
        generation: Generation,
        account: Account,
        arrived_at: float,
        trace: CallTrace,
        stage: Stage,
    ) -> None:
        """`account` knows the model; what the request uses is written to it. `stage` is this stream's in `trace`."""
        self.account = account
        self.finish_reasons: list[str] = []  # of the completions that have ended well
        self._trace = trace
        self._stage = stage
        self._observer = observer
        self._generation = generation
        self._model = account.model
        self._arrived_at = arrived_at
        self._last_sent_at: float | None = None

    def __enter__(self) -> None:
        self._observer.stream_opened(self._generation.tenant)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        request = self._generation
        self._observer.stream_closed(request.tenant)
        self._stage.describe(self._used)
        self._trace.sum_up(self._used)
        _log.info(
            "stream ended",
            request_id=request.request_id,
            tenant=request.tenant,
            model=self._model,
            adapter=request.adapter,
            prompt_tokens=request.prompt_tokens,
            completion_tokens=self.account.completion_tokens,
            seconds=round(time.monotonic() - self._arrived_at, 4),
            end="finished" if kind is None else kind.__name__,
            **self._trace.labels,
        )

    def admitted(self, usage: inference_pb2.Usage) -> None:
        request, cached = self._generation, usage.cached
        account = self.account
        account.admitted = True
        account.prompt_tokens = usage.prompt_tokens
        account.cached_device_tokens = cached.device
        account.cached_host_tokens = cached.host
        account.cached_storage_tokens = cached.storage
        account.public_prefix_tokens = usage.public_prefix_tokens
        account.cached_public_tokens = usage.cached_public_tokens
        tiers = (cached.device, cached.host, cached.storage)
        whose = (request.tenant, self._model, request.adapter)
        self._observer.admitted(*whose, usage.prompt_tokens, *tiers)
        if usage.public_prefix_tokens:
            self._observer.public_prefix_met(*whose, usage.public_prefix_tokens, usage.cached_public_tokens)

    def sent(self, delta: Delta) -> None:
        if not delta.num_tokens:
            return
        now, tenant = time.monotonic(), self._generation.tenant
        if self._last_sent_at is None:
            self._stage.event("first message")
            self._observer.first_message(tenant, self._model, now - self._arrived_at)
        else:
            self._observer.next_message(tenant, self._model, now - self._last_sent_at)
        self._last_sent_at = now

    def finished(self) -> None:
        request, seconds = self._generation, time.monotonic() - self._arrived_at
        self._observer.stream_finished(
            request.tenant, self._model, request.adapter, self.account.completion_tokens, seconds
        )

    def _used(self) -> Attributes:
        return used(self.account, self.finish_reasons)
