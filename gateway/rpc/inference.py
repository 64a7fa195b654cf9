"""InferenceService: what tenants call."""

import asyncio
import time
from typing import Any, Protocol

import grpc

from gateway.config import GatewayLimits, ServerConfig
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.fleet import Fleet, Generation
from gateway.dispatch.stream import Chunk, TokenStream
from gateway.errors import DeadlineExceededError, InternalError
from gateway.identity.adapters import AdapterDirectory
from gateway.rpc.boundary import current_caller
from gateway.rpc.preparation import Preparation
from gateway.rpc.prompts import encode_prompt
from radixgate.v1 import inference_pb2, inference_pb2_grpc, worker_pb2


class StreamObserver(Protocol):
    def stream_opened(self, tenant: str) -> None: ...

    def stream_closed(self, tenant: str) -> None: ...

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None: ...

    def first_message(self, tenant: str, model: str, seconds: float) -> None: ...

    def next_message(self, tenant: str, model: str, seconds: float) -> None: ...

    def stream_finished(
        self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float
    ) -> None: ...


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Runs behind the boundary, which has authenticated the caller and translates the errors raised here."""

    def __init__(
        self,
        fleet: Fleet,
        adapters: AdapterDirectory,
        preparation: Preparation,
        limits: GatewayLimits,
        config: ServerConfig,
        observer: StreamObserver,
    ) -> None:
        self._fleet = fleet
        self._adapters = adapters
        self._preparation = preparation
        self._limits = limits
        self._config = config
        self._observer = observer

    async def Generate(  # type: ignore[override]
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse],
    ) -> None:
        caller = current_caller.get()
        asked_s: float | None = context.time_remaining()  # None without a deadline, whatever the type says
        timeout_s = self._config.default_deadline_s if asked_s is None else asked_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                model, generation = await self._preparation.prepare(caller.tenant_id, request)
                remaining_s = deadline - asyncio.get_running_loop().time()
                report = _Report(self._observer, model, generation, caller.arrived_at)
                with self._fleet.submit(model, generation, remaining_s) as stream, report:
                    await _relay(stream, generation, report, context)
        except TimeoutError:
            raise DeadlineExceededError(
                f"not finished within {timeout_s:g} s (the client's deadline, or the gateway's default)"
            ) from None

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.CountTokensResponse:
        model = self._fleet.model(request.model)
        token_ids = await encode_prompt(request, model, self._limits)
        return inference_pb2.CountTokensResponse(num_tokens=len(token_ids), token_ids=token_ids)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        tenant_id = current_caller.get().tenant_id
        response = inference_pb2.ListModelsResponse()
        for model in self._fleet.models():
            adapters = await self._adapters.list_of(tenant_id, model.name)
            response.models.add(
                name=model.name, context_length=model.context_length, adapters=[adapter.name for adapter in adapters]
            )
        return response


async def _relay(
    stream: TokenStream,
    generation: Generation,
    report: "_Report",
    context: grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse],
) -> None:
    """Pass a sequence's chunks on until it is finished."""
    usage: inference_pb2.Usage | None = None
    completion_tokens = 0
    while True:
        chunk = await stream.take()
        if chunk.admission is not None and usage is None:
            usage = _usage(chunk.admission, len(generation.token_ids))
            report.admitted(usage)
        completion_tokens += chunk.num_tokens
        message = chunk.message
        message.request_id = generation.request_id
        if chunk.finished:
            if usage is None:
                raise InternalError("the worker finished a request that it never admitted", reason="WORKER_FAILED")
            usage.completion_tokens = completion_tokens
            message.usage.CopyFrom(usage)
        if chunk.finished or message.token_ids or message.text:
            await context.write(message)
            report.sent(chunk)
        if chunk.finished:
            report.finished(completion_tokens)
            return


def _usage(admission: worker_pb2.Admission, prompt_tokens: int) -> inference_pb2.Usage:
    """Return the prompt's part of the usage. Accounts that do not add up are a fault of the worker, not a rounding."""
    cached = admission.cached
    tiers = (cached.device, cached.host, cached.storage)
    if admission.prompt_tokens != prompt_tokens or min(tiers) < 0 or sum(tiers) > prompt_tokens:
        raise InternalError("the worker's account of the prompt does not add up", reason="WORKER_FAILED")
    return inference_pb2.Usage(
        prompt_tokens=prompt_tokens, cached=cached, computed_prompt_tokens=prompt_tokens - sum(tiers)
    )


class _Report:
    """Tells the observer about one stream. Open from submit to whatever end it comes to."""

    def __init__(self, observer: StreamObserver, model: ServedModel, generation: Generation, arrived_at: float) -> None:
        self._observer = observer
        self._tenant = generation.tenant
        self._model = model.name
        self._adapter = generation.adapter
        self._arrived_at = arrived_at
        self._last_sent_at: float | None = None

    def __enter__(self) -> None:
        self._observer.stream_opened(self._tenant)

    def __exit__(self, *reason: object) -> None:
        self._observer.stream_closed(self._tenant)

    def admitted(self, usage: inference_pb2.Usage) -> None:
        cached = usage.cached
        self._observer.admitted(
            self._tenant,
            self._model,
            self._adapter,
            usage.prompt_tokens,
            cached.device,
            cached.host,
            cached.storage,
        )

    def sent(self, chunk: Chunk) -> None:
        if not chunk.num_tokens:
            return
        now = time.monotonic()
        if self._last_sent_at is None:
            self._observer.first_message(self._tenant, self._model, now - self._arrived_at)
        else:
            self._observer.next_message(self._tenant, self._model, now - self._last_sent_at)
        self._last_sent_at = now

    def finished(self, completion_tokens: int) -> None:
        seconds = time.monotonic() - self._arrived_at
        self._observer.stream_finished(self._tenant, self._model, self._adapter, completion_tokens, seconds)
