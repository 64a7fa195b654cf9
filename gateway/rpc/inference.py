"""InferenceService: what tenants call."""

import asyncio
import uuid
from typing import Any

import grpc

from gateway.config import GatewayLimits, ServerConfig
from gateway.dispatch.fleet import Fleet
from gateway.errors import (
    AdapterChangedError,
    DeadlineExceededError,
    GatewayError,
    InvalidRequestError,
    Violation,
)
from gateway.identity.adapters import AdapterDirectory
from gateway.rpc.boundary import current_caller
from gateway.rpc.preparation import Preparation
from gateway.rpc.prompts import encode_prompt, prompt_field
from gateway.rpc.relay import StreamObserver, StreamReport, Write, relay
from radixgate.v1 import inference_pb2, inference_pb2_grpc


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
        asked_s: float | None = context.time_remaining()  # None without a deadline, whatever the type says
        timeout_s = self._config.default_deadline_s if asked_s is None else asked_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        request_id = request.request_id or uuid.uuid4().hex
        try:
            async with asyncio.timeout_at(deadline):
                writer = _Writer(context.write)
                try:
                    await self._answer(request, request_id, deadline, writer.write)
                except AdapterChangedError:
                    if writer.has_written:
                        raise
                    # Nobody has seen anything of it: answer with the adapter as it is now, if there is one.
                    await self._answer(request, request_id, deadline, writer.write)
        except TimeoutError:
            raise DeadlineExceededError(
                f"not finished within {timeout_s:g} s (the client's deadline, or the gateway's default)",
                metadata={"requestId": request_id},
            ) from None
        except GatewayError as error:
            error.metadata["requestId"] = request_id[: self._limits.max_request_id_chars]
            raise

    async def _answer(
        self, request: inference_pb2.GenerateRequest, request_id: str, deadline: float, write: Write
    ) -> None:
        caller = current_caller.get()
        model, generation = await self._preparation.prepare(caller.tenant_id, request_id, request)
        remaining_s = deadline - asyncio.get_running_loop().time()
        report = StreamReport(self._observer, generation, model.name, caller.arrived_at)
        with self._fleet.submit(model, generation, remaining_s) as stream, report:
            await relay(stream, generation, report, write)

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.CountTokensResponse:
        model = self._fleet.model(request.model)
        token_ids = await encode_prompt(
            request, current_caller.get().tenant_id, model, self._limits, model.context_length
        )
        response = inference_pb2.CountTokensResponse(num_tokens=len(token_ids), token_ids=token_ids)
        self._check_size(response, prompt_field(request))
        return response

    def _check_size(self, response: inference_pb2.CountTokensResponse, field: str) -> None:
        size, most = response.ByteSize(), self._limits.max_message_bytes
        if size > most:
            told = (
                f"has {response.num_tokens} tokens, whose ids make an answer of {size} bytes; at most {most} are sent"
            )
            raise InvalidRequestError([Violation(field, told)])

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


class _Writer:
    """Knows whether the client has been sent anything."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.has_written = False

    async def write(self, message: inference_pb2.GenerateResponse) -> None:
        self.has_written = True
        await self._write(message)
