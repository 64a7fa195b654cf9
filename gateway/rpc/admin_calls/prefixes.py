"""Public prefixes, as operators see them."""

from collections.abc import Sequence

from gateway.config import GatewayLimits
from gateway.control.prefix_index import RegisteredPrefix
from gateway.control.prefix_tokens import prefix_tokens
from gateway.control.prefixes import PrefixControl
from gateway.dispatch.fleet import Fleet
from gateway.errors import Violation
from gateway.identity.idempotency import Idempotency
from gateway.rpc.admin_calls.cache import purged_message
from gateway.rpc.admin_calls.messages import MAX_NAME_CHARS, check_display_name, check_id, refuse, timestamp, too_long
from radixgate.v1 import admin_pb2


class PrefixCalls:
    def __init__(self, fleet: Fleet, control: PrefixControl, idempotency: Idempotency, limits: GatewayLimits) -> None:
        self._fleet = fleet
        self._control = control
        self._idempotency = idempotency
        self._limits = limits

    async def create_public_prefix(
        self, request: admin_pb2.CreatePublicPrefixRequest
    ) -> admin_pb2.CreatePublicPrefixResponse:
        return await self._idempotency.once("CreatePublicPrefix", request, lambda: self._create(request))

    async def _create(self, request: admin_pb2.CreatePublicPrefixRequest) -> admin_pb2.CreatePublicPrefixResponse:
        violations = check_id("prefix_id", request.prefix_id) + check_display_name(request.display_name)
        if len(request.adapter) > MAX_NAME_CHARS:
            violations.append(Violation("adapter", too_long(request.adapter)))
        refuse(violations)
        model = self._fleet.model(request.model)
        token_ids: Sequence[int] = await prefix_tokens(request, model, self._limits)
        prefix = await self._control.create(
            request.prefix_id, request.display_name, model.name, request.adapter, token_ids
        )
        return admin_pb2.CreatePublicPrefixResponse(prefix=_prefix_message(prefix))

    async def list_public_prefixes(
        self, request: admin_pb2.ListPublicPrefixesRequest
    ) -> admin_pb2.ListPublicPrefixesResponse:
        prefixes = await self._control.all()
        return admin_pb2.ListPublicPrefixesResponse(prefixes=[_prefix_message(prefix) for prefix in prefixes])

    async def delete_public_prefix(
        self, request: admin_pb2.DeletePublicPrefixRequest
    ) -> admin_pb2.DeletePublicPrefixResponse:
        purge = await self._control.delete(request.prefix_id)
        return admin_pb2.DeletePublicPrefixResponse(purged=purged_message(purge))


def _prefix_message(prefix: RegisteredPrefix) -> admin_pb2.PublicPrefix:
    return admin_pb2.PublicPrefix(
        prefix_id=prefix.prefix_id,
        display_name=prefix.display_name,
        model=prefix.model,
        adapter=prefix.adapter,
        num_tokens=prefix.num_tokens,
        create_time=timestamp(prefix.created_at),
    )
