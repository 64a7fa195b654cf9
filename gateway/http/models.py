"""GET /v1/models and /v1/models/NAME: what the caller may name. An adapter is a model of its own, MODEL:ADAPTER."""

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import NotFoundError
from gateway.http.boundary import Call
from gateway.http.errors import Json
from gateway.identity.callers import Caller
from gateway.serving.offers import OfferedModel


class ModelOffers(Protocol):
    async def models(self, caller: Caller) -> Sequence[OfferedModel]: ...


class ModelRoutes:
    def __init__(self, offers: ModelOffers, started_at: float) -> None:
        """`started_at`: of this gateway, since the epoch. OpenAI's form wants a time with every model."""
        self._offers = offers
        self._created = int(started_at)

    async def list_all(self, call: Call) -> None:
        await call.exchange.reply.document(200, {"object": "list", "data": await self._documents(call.caller)})

    async def retrieve(self, call: Call) -> None:
        for document in await self._documents(call.caller):
            if document["id"] == call.name:
                await call.exchange.reply.document(200, document)
                return
        raise NotFoundError("model", call.name)

    async def _documents(self, caller: Caller) -> list[Json]:
        return [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "radixgate",
                "context_length": model.context_length,
                "base": model.name,
                "adapter": adapter,
                "simulated": model.simulated,
            }
            for model in await self._offers.models(caller)
            for name, adapter in [
                (model.name, None),
                *((f"{model.name}:{adapter}", adapter) for adapter in model.adapters),
            ]
        ]
