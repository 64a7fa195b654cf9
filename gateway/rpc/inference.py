"""InferenceService: what tenants call over gRPC."""

from typing import Any

import grpc

from gateway.rpc.boundary import client_gone, current_caller, current_trace
from gateway.serving.inference import Inference
from gateway.serving.offers import Offers
from radixgate.v1 import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Runs behind the boundary, which has authenticated the caller and translates the errors raised here."""

    def __init__(self, inference: Inference, offers: Offers) -> None:
        self._inference = inference
        self._offers = offers

    async def Generate(  # type: ignore[override]
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse],
    ) -> None:
        timeout_s: float | None = context.time_remaining()  # None without a deadline, whatever the type says

        async def write(message: inference_pb2.GenerateResponse) -> None:
            try:
                await context.write(message)
            except grpc.aio.InternalError:
                raise client_gone() from None  # accounts and logs are to say so, and not that something failed

        await self._inference.generate(current_caller(), request, timeout_s, write, current_trace())

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.CountTokensResponse:
        return await self._inference.count_tokens(current_caller(), request)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(name=model.name, context_length=model.context_length, adapters=model.adapters)
                for model in await self._offers.models(current_caller())
            ]
        )
