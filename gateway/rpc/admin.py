"""AdminService: what operators call. Every call leaves a line in the log."""

import base64
import binascii
import re
import time
from typing import Any

import grpc
import structlog
from google.protobuf import timestamp_pb2

from gateway.errors import InvalidRequestError, NotFoundError, Violation
from gateway.identity.credentials import Credential
from gateway.identity.stores import ApiKey, KeyRecord, KeyStore, Tenant, TenantStore
from radixgate.v1 import admin_pb2, admin_pb2_grpc

_log = structlog.get_logger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]

_TENANT_ID = re.compile(r"[a-z0-9_-]{1,64}")
_MAX_NAME_CHARS = 128
_DEFAULT_PAGE_SIZE = 100
_MAX_PAGE_SIZE = 1000


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Runs behind the boundary, which has checked the admin token and translates the errors raised here."""

    def __init__(self, tenants: TenantStore, keys: KeyStore) -> None:
        self._tenants = tenants
        self._keys = keys

    async def CreateTenant(
        self, request: admin_pb2.CreateTenantRequest, context: _Context
    ) -> admin_pb2.CreateTenantResponse:
        violations = _check_display_name(request.display_name)
        if not _TENANT_ID.fullmatch(request.tenant_id):
            violations.append(
                Violation("tenant_id", "must be 1 to 64 characters out of lower-case letters, digits, - and _")
            )
        _refuse(violations)
        tenant = await self._tenants.create(request.tenant_id, request.display_name, time.time())
        _log.info("tenant created", tenant=tenant.tenant_id)
        return admin_pb2.CreateTenantResponse(tenant=_tenant_message(tenant))

    async def GetTenant(self, request: admin_pb2.GetTenantRequest, context: _Context) -> admin_pb2.GetTenantResponse:
        return admin_pb2.GetTenantResponse(tenant=_tenant_message(await self._existing(request.tenant_id)))

    async def ListTenants(
        self, request: admin_pb2.ListTenantsRequest, context: _Context
    ) -> admin_pb2.ListTenantsResponse:
        if request.page_size < 0:
            _refuse([Violation("page_size", f"is {request.page_size}; must be at least 0")])
        page_size = min(request.page_size or _DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE)
        # One more than asked for tells whether there is a next page.
        tenants = await self._tenants.list_after(_read_page_token(request.page_token), page_size + 1)
        page = tenants[:page_size]
        more = len(tenants) > page_size
        return admin_pb2.ListTenantsResponse(
            tenants=[_tenant_message(tenant) for tenant in page],
            next_page_token=_page_token(page[-1].tenant_id) if more else "",
        )

    async def CreateApiKey(
        self, request: admin_pb2.CreateApiKeyRequest, context: _Context
    ) -> admin_pb2.CreateApiKeyResponse:
        _refuse(_check_display_name(request.display_name))
        credential = Credential.generate()
        key = ApiKey(credential.key_id, request.tenant_id, request.display_name, time.time())
        await self._keys.add(KeyRecord(key, credential.secret_hash()))
        _log.info("key created", tenant=key.tenant_id, key_id=key.key_id)
        return admin_pb2.CreateApiKeyResponse(api_key=_key_message(key), secret=str(credential))

    async def ListApiKeys(
        self, request: admin_pb2.ListApiKeysRequest, context: _Context
    ) -> admin_pb2.ListApiKeysResponse:
        tenant = await self._existing(request.tenant_id)
        keys = await self._keys.list_of(tenant.tenant_id)
        return admin_pb2.ListApiKeysResponse(api_keys=[_key_message(key) for key in keys])

    async def RevokeApiKey(
        self, request: admin_pb2.RevokeApiKeyRequest, context: _Context
    ) -> admin_pb2.RevokeApiKeyResponse:
        key = await self._keys.revoke(request.key_id, time.time())
        if key is None:
            raise NotFoundError("key", request.key_id)
        _log.info("key revoked", tenant=key.tenant_id, key_id=key.key_id)
        return admin_pb2.RevokeApiKeyResponse(api_key=_key_message(key))

    async def InvalidateCache(
        self, request: admin_pb2.InvalidateCacheRequest, context: _Context
    ) -> admin_pb2.InvalidateCacheResponse:
        if len(request.adapter) > _MAX_NAME_CHARS:
            _refuse([Violation("adapter", _too_long(request.adapter))])
        version = await self._tenants.bump_cache_version(request.tenant_id, request.adapter)
        if version is None:
            raise NotFoundError("tenant", request.tenant_id)
        _log.info("cache invalidated", tenant=request.tenant_id, adapter=request.adapter, cache_version=version)
        return admin_pb2.InvalidateCacheResponse(cache_version=version)

    async def _existing(self, tenant_id: str) -> Tenant:
        tenant = await self._tenants.get(tenant_id)
        if tenant is None:
            raise NotFoundError("tenant", tenant_id)
        return tenant


def _check_display_name(name: str) -> list[Violation]:
    return [Violation("display_name", _too_long(name))] if len(name) > _MAX_NAME_CHARS else []


def _too_long(name: str) -> str:
    return f"has {len(name)} characters; at most {_MAX_NAME_CHARS} are allowed"


def _refuse(violations: list[Violation]) -> None:
    if violations:
        raise InvalidRequestError(violations)


def _page_token(last_id: str) -> str:
    return base64.urlsafe_b64encode(last_id.encode()).decode()


def _read_page_token(token: str) -> str:
    try:
        last_id = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        last_id = "?"
    if token and not _TENANT_ID.fullmatch(last_id):
        _refuse([Violation("page_token", "is not a token that ListTenants has returned")])
    return last_id


def _tenant_message(tenant: Tenant) -> admin_pb2.Tenant:
    return admin_pb2.Tenant(
        tenant_id=tenant.tenant_id,
        display_name=tenant.display_name,
        create_time=_timestamp(tenant.created_at),
        cache_version=tenant.cache_version,
    )


def _key_message(key: ApiKey) -> admin_pb2.ApiKey:
    return admin_pb2.ApiKey(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        display_name=key.display_name,
        create_time=_timestamp(key.created_at),
        revoke_time=None if key.revoked_at is None else _timestamp(key.revoked_at),
    )


def _timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromMilliseconds(round(seconds * 1000))
    return timestamp
