"""Tenants, as operators see them."""

import time

import structlog

from gateway.errors import NotFoundError, Violation
from gateway.identity.stores import Tenant, TenantStore
from gateway.rpc.admin_calls.messages import (
    TENANT_ID,
    check_display_name,
    page_size_of,
    page_token,
    read_page_token,
    refuse,
    timestamp,
)
from radixgate.v1 import admin_pb2

_log = structlog.get_logger(__name__)


class TenantCalls:
    def __init__(self, tenants: TenantStore) -> None:
        self._tenants = tenants

    async def create_tenant(self, request: admin_pb2.CreateTenantRequest) -> admin_pb2.CreateTenantResponse:
        violations = check_display_name(request.display_name)
        if not TENANT_ID.fullmatch(request.tenant_id):
            violations.append(
                Violation("tenant_id", "must be 1 to 64 characters out of lower-case letters, digits, - and _")
            )
        refuse(violations)
        tenant = await self._tenants.create(request.tenant_id, request.display_name, time.time())
        _log.info("tenant created", tenant=tenant.tenant_id)
        return admin_pb2.CreateTenantResponse(tenant=_tenant_message(tenant))

    async def get_tenant(self, request: admin_pb2.GetTenantRequest) -> admin_pb2.GetTenantResponse:
        return admin_pb2.GetTenantResponse(tenant=_tenant_message(await self._existing(request.tenant_id)))

    async def list_tenants(self, request: admin_pb2.ListTenantsRequest) -> admin_pb2.ListTenantsResponse:
        page_size = page_size_of(request.page_size)
        # One more than asked for tells whether there is a next page.
        after = read_page_token(request.page_token, TENANT_ID, "ListTenants")
        tenants = await self._tenants.list_after(after, page_size + 1)
        page = tenants[:page_size]
        more = len(tenants) > page_size
        return admin_pb2.ListTenantsResponse(
            tenants=[_tenant_message(tenant) for tenant in page],
            next_page_token=page_token(page[-1].tenant_id) if more else "",
        )

    async def update_tenant(self, request: admin_pb2.UpdateTenantRequest) -> admin_pb2.UpdateTenantResponse:
        raise NotImplementedError

    async def suspend_tenant(self, request: admin_pb2.SuspendTenantRequest) -> admin_pb2.SuspendTenantResponse:
        raise NotImplementedError

    async def resume_tenant(self, request: admin_pb2.ResumeTenantRequest) -> admin_pb2.ResumeTenantResponse:
        raise NotImplementedError

    async def delete_tenant(self, request: admin_pb2.DeleteTenantRequest) -> admin_pb2.DeleteTenantResponse:
        raise NotImplementedError

    async def _existing(self, tenant_id: str) -> Tenant:
        tenant = await self._tenants.get(tenant_id)
        if tenant is None:
            raise NotFoundError("tenant", tenant_id)
        return tenant


def _tenant_message(tenant: Tenant) -> admin_pb2.Tenant:
    return admin_pb2.Tenant(
        tenant_id=tenant.tenant_id,
        display_name=tenant.display_name,
        create_time=timestamp(tenant.created_at),
        cache_version=tenant.cache_version,
    )
