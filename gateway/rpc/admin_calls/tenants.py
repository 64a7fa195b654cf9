"""Tenants, as operators see them."""

from typing import Any, Protocol

import structlog

from gateway.config import GatewayLimits
from gateway.errors import NotFoundError, Violation
from gateway.identity.idempotency import Attempt, Idempotency
from gateway.identity.stores import Tenant, TenantChange, TenantState, TenantStore
from gateway.identity.terms import TermsBook
from gateway.policy import TenantPolicy, is_tenant_id
from gateway.rpc.admin_calls.messages import (
    check_display_name,
    check_id,
    num_fitting,
    page_size_of,
    page_token,
    read_page_token,
    refuse,
    timestamp,
)
from gateway.rpc.admin_calls.policies import FIELDS, policy_message, read_policy
from radixgate.v1 import admin_pb2

_log = structlog.get_logger(__name__)

_STATES = {
    TenantState.ACTIVE: admin_pb2.TENANT_STATE_ACTIVE,
    TenantState.SUSPENDED: admin_pb2.TENANT_STATE_SUSPENDED,
}


class UsagePurge(Protocol):
    async def purge_usage(self, tenant_id: str, created_at: float) -> None:
        """Remove what is kept of the usage of the tenant that was created then. Raises UnavailableError."""
        ...


class CachePurge(Protocol):
    async def purge_tenant(self, tenant_id: str) -> admin_pb2.PurgedCache:
        """Remove a tenant's KV from all tiers, as far as its workers can be asked now. Raises UnavailableError."""
        ...


class TenantCalls:
    def __init__(
        self,
        tenants: TenantStore,
        terms: TermsBook,
        idempotency: Idempotency,
        usage: UsagePurge,
        cache: CachePurge,
        limits: GatewayLimits,
    ) -> None:
        self._tenants = tenants
        self._terms = terms
        self._idempotency = idempotency
        self._usage = usage
        self._cache = cache
        self._limits = limits

    async def create_tenant(self, request: admin_pb2.CreateTenantRequest) -> admin_pb2.CreateTenantResponse:
        violations = check_id("tenant_id", request.tenant_id) + check_display_name(request.display_name)
        policy, faults = read_policy(request.policy, "policy")
        refuse(violations + faults)

        async def make(attempt: Attempt) -> admin_pb2.CreateTenantResponse:
            tenant = await self._tenants.create(
                request.tenant_id, request.display_name, attempt.at, TenantPolicy(**policy), attempt.mark
            )
            _log.info("tenant created", tenant=tenant.tenant_id)
            return admin_pb2.CreateTenantResponse(tenant=self._message(tenant))

        answer, _ = await self._idempotency.attempt("CreateTenant", request, make)
        return answer

    async def get_tenant(self, request: admin_pb2.GetTenantRequest) -> admin_pb2.GetTenantResponse:
        tenant = _existing(await self._tenants.get(request.tenant_id), request.tenant_id)
        return admin_pb2.GetTenantResponse(tenant=self._message(tenant))

    async def list_tenants(self, request: admin_pb2.ListTenantsRequest) -> admin_pb2.ListTenantsResponse:
        page_size = page_size_of(request.page_size)
        # One more than asked for tells whether there is a next page.
        after = read_page_token(request.page_token, is_tenant_id, "ListTenants")
        tenants = await self._tenants.list_after(after, page_size + 1)
        page = [self._message(tenant) for tenant in tenants[:page_size]]
        page = page[: num_fitting(page, self._limits.max_message_bytes // 2)]
        more = len(tenants) > len(page)
        return admin_pb2.ListTenantsResponse(
            tenants=page, next_page_token=page_token(page[-1].tenant_id) if more else ""
        )

    async def update_tenant(self, request: admin_pb2.UpdateTenantRequest) -> admin_pb2.UpdateTenantResponse:
        tenant_id = request.tenant.tenant_id
        changed = await self._tenants.update(tenant_id, _change_of(request))
        tenant = _existing(changed, tenant_id)
        _log.info("tenant updated", tenant=tenant_id, fields=sorted(request.update_mask.paths))
        return admin_pb2.UpdateTenantResponse(tenant=self._message(tenant))

    async def suspend_tenant(self, request: admin_pb2.SuspendTenantRequest) -> admin_pb2.SuspendTenantResponse:
        tenant = await self._set_state(request.tenant_id, TenantState.SUSPENDED)
        return admin_pb2.SuspendTenantResponse(tenant=self._message(tenant))

    async def resume_tenant(self, request: admin_pb2.ResumeTenantRequest) -> admin_pb2.ResumeTenantResponse:
        tenant = await self._set_state(request.tenant_id, TenantState.ACTIVE)
        return admin_pb2.ResumeTenantResponse(tenant=self._message(tenant))

    async def delete_tenant(self, request: admin_pb2.DeleteTenantRequest) -> admin_pb2.DeleteTenantResponse:
        """Suspended first and deleted last: when something in between fails, the call can be repeated."""
        tenant_id = request.tenant_id
        tenant = await self._set_state(tenant_id, TenantState.SUSPENDED)
        await self._tenants.bump_cache_version(tenant_id, "")  # so that nothing hits what is being purged
        purged = await self._cache.purge_tenant(tenant_id)
        await self._usage.purge_usage(tenant_id, tenant.created_at)
        num_keys = await self._tenants.delete(tenant_id, tenant.created_at)
        if num_keys is None:
            raise NotFoundError("tenant", tenant_id)
        _log.info("tenant deleted", tenant=tenant_id, api_keys=num_keys)
        return admin_pb2.DeleteTenantResponse(deleted_api_keys=num_keys, purged=purged)

    async def _set_state(self, tenant_id: str, state: TenantState) -> Tenant:
        tenant = _existing(await self._tenants.set_state(tenant_id, state), tenant_id)
        _log.info("tenant is now", tenant=tenant_id, state=state.value)
        return tenant

    def _message(self, tenant: Tenant) -> admin_pb2.Tenant:
        return admin_pb2.Tenant(
            tenant_id=tenant.tenant_id,
            display_name=tenant.display_name,
            create_time=timestamp(tenant.created_at),
            cache_version=tenant.cache_version,
            state=_STATES[tenant.state],
            policy=policy_message(tenant.policy),
            effective_policy=policy_message(self._terms.of(tenant)),
        )


def _existing(tenant: Tenant | None, tenant_id: str) -> Tenant:
    if tenant is None:
        raise NotFoundError("tenant", tenant_id)
    return tenant


def _change_of(request: admin_pb2.UpdateTenantRequest) -> TenantChange:
    """Return what the mask names. Raises InvalidRequestError."""
    paths = set(request.update_mask.paths)
    known = {"display_name", "policy", *(f"policy.{field}" for field in FIELDS)}
    violations = [
        Violation("update_mask", f"{path[:64]!r} cannot be changed; display_name, policy and policy.FIELD can")
        for path in sorted(paths - known)
    ]
    if not paths:
        violations.append(Violation("update_mask", "is empty; name what to change"))
    display_name = request.tenant.display_name if "display_name" in paths else None
    violations += [
        Violation(f"tenant.{each.field}", each.description) for each in check_display_name(display_name or "")
    ]
    only = FIELDS if "policy" in paths else [path.removeprefix("policy.") for path in paths]
    policy: dict[str, Any]
    policy, faults = read_policy(request.tenant.policy, "tenant.policy", only)
    refuse(violations + faults)
    return TenantChange(display_name, policy)
