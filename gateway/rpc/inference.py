"""InferenceService: what tenants call over gRPC."""

from collections.abc import Callable
from typing import Any

import grpc

from gateway.dispatch import explanation
from gateway.dispatch.explanation import Explanation
from gateway.rpc.boundary import client_gone, current_caller, current_trace
from gateway.serving.inference import Inference
from gateway.serving.offers import Offers
from radixgate.v1 import inference_pb2, inference_pb2_grpc


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Runs behind the boundary, which has authenticated the caller and translates the errors raised here."""

    def __init__(
        self,
        inference: Inference,
        offers: Offers,
        explanations: Callable[[str | None], Explanation | None] = explanation.never,
    ) -> None:
        """`explanations` returns what a call is to be explained in, by what it says of that."""
        self._inference = inference
        self._offers = offers
        self._explanations = explanations

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

        explained = self._explanations(_asks_for_explanation(context))
        try:
            await self._inference.generate(current_caller(), request, timeout_s, write, current_trace(), explained)
        finally:
            if explained is not None:
                context.set_trailing_metadata(((explanation.KEY, explained.text()),))

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.CountTokensResponse:
        return await self._inference.count_tokens(current_caller(), request)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(
                    name=model.name,
                    context_length=model.context_length,
                    adapters=model.adapters,
                    simulated=model.simulated,
                )
                for model in await self._offers.models(current_caller())
            ]
        )


def _asks_for_explanation(context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    metadata: Any = context.invocation_metadata() or ()
    return next((value for key, value in metadata if key == explanation.KEY), None)
