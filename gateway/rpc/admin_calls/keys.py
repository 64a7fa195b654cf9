"""API keys, as operators see them."""

import time
from collections.abc import Callable

import structlog

from gateway.config import GatewayLimits
from gateway.errors import NotFoundError, Violation
from gateway.identity.credentials import is_key_id
from gateway.identity.idempotency import Attempt, Idempotency
from gateway.identity.issuing import Issuer
from gateway.identity.stores import ApiKey, KeyRecord, KeyStore, TenantStore
from gateway.rpc.admin_calls.messages import (
    check_display_name,
    check_names,
    num_fitting,
    page_size_of,
    page_token,
    read_page_token,
    refuse,
    seconds_of,
    time_of,
    timestamp,
)
from radixgate.v1 import admin_pb2

_log = structlog.get_logger(__name__)

DEFAULT_OVERLAP_S = 86_400.0
MAX_OVERLAP_S = 90 * 86_400.0


class KeyCalls:
    def __init__(
        self,
        tenants: TenantStore,
        keys: KeyStore,
        issuer: Issuer,
        idempotency: Idempotency,
        limits: GatewayLimits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tenants = tenants
        self._keys = keys
        self._issuer = issuer
        self._idempotency = idempotency
        self._limits = limits
        self._now = now

    async def create_api_key(self, request: admin_pb2.CreateApiKeyRequest) -> admin_pb2.CreateApiKeyResponse:
        expires_at, violations = _expiry(request)
        violations += check_display_name(request.display_name)
        violations += [*check_names("models", request.models), *check_names("adapters", request.adapters)]
        refuse(violations)

        async def make(attempt: Attempt) -> admin_pb2.CreateApiKeyResponse:
            self._refuse_past(expires_at)
            credential = await self._issuer.credential("CreateApiKey", request.tenant_id, request.request_id, attempt)
            key = ApiKey(
                credential.key_id,
                request.tenant_id,
                request.display_name,
                attempt.at,
                expires_at=expires_at,
                models=tuple(request.models),
                adapters=tuple(request.adapters),
            )
            await self._keys.add(KeyRecord(key, credential.secret_hash()))
            _log.info("key created", tenant=key.tenant_id, key_id=key.key_id)
            return admin_pb2.CreateApiKeyResponse(api_key=_key_message(key))

        answer, attempt = await self._idempotency.attempt("CreateApiKey", request, make)
        answer.secret = str(
            await self._issuer.credential("CreateApiKey", request.tenant_id, request.request_id, attempt)
        )
        return answer

    async def list_api_keys(self, request: admin_pb2.ListApiKeysRequest) -> admin_pb2.ListApiKeysResponse:
        page_size = page_size_of(request.page_size)
        after = read_page_token(request.page_token, is_key_id, "ListApiKeys")
        if await self._tenants.get(request.tenant_id) is None:
            raise NotFoundError("tenant", request.tenant_id)
        # One more than asked for tells whether there is a next page.
        keys = await self._keys.list_after(request.tenant_id, after, page_size + 1)
        page = [_key_message(key) for key in keys[:page_size]]
        page = page[: num_fitting(page, self._limits.max_message_bytes // 2)]
        more = len(keys) > len(page)
        return admin_pb2.ListApiKeysResponse(api_keys=page, next_page_token=page_token(page[-1].key_id) if more else "")

    async def rotate_api_key(self, request: admin_pb2.RotateApiKeyRequest) -> admin_pb2.RotateApiKeyResponse:
        overlap_s, violations = _overlap(request)
        expires_at, faults = _expiry(request)
        refuse(violations + faults)

        async def make(attempt: Attempt) -> admin_pb2.RotateApiKeyResponse:
            self._refuse_past(expires_at)
            old = await self._keys.find(request.key_id)
            if old is None:
                raise NotFoundError("key", request.key_id)
            tenant_id = old.api_key.tenant_id
            credential = await self._issuer.credential("RotateApiKey", tenant_id, request.request_id, attempt)
            key = ApiKey(
                credential.key_id,
                tenant_id,
                old.api_key.display_name,
                attempt.at,
                expires_at=expires_at,
                models=old.api_key.models,
                adapters=old.api_key.adapters,
                replaces=request.key_id,
            )
            replaced = await self._keys.rotate(KeyRecord(key, credential.secret_hash()), attempt.at + overlap_s)
            _log.info("key rotated", tenant=tenant_id, key_id=request.key_id, by=key.key_id)
            return admin_pb2.RotateApiKeyResponse(api_key=_key_message(key), replaced=_key_message(replaced))

        answer, attempt = await self._idempotency.attempt("RotateApiKey", request, make)
        answer.secret = str(
            await self._issuer.credential("RotateApiKey", answer.api_key.tenant_id, request.request_id, attempt)
        )
        return answer

    async def revoke_api_key(self, request: admin_pb2.RevokeApiKeyRequest) -> admin_pb2.RevokeApiKeyResponse:
        key = await self._keys.revoke(request.key_id, self._now())
        if key is None:
            raise NotFoundError("key", request.key_id)
        _log.info("key revoked", tenant=key.tenant_id, key_id=key.key_id)
        return admin_pb2.RevokeApiKeyResponse(api_key=_key_message(key))

    def _refuse_past(self, expires_at: float | None) -> None:
        """Only when something is made: a repeated call gets its answer however late it is."""
        if expires_at is not None and expires_at <= self._now():
            refuse([Violation("expire_time", "has passed; must be in the future")])


def _expiry(
    request: admin_pb2.CreateApiKeyRequest | admin_pb2.RotateApiKeyRequest,
) -> tuple[float | None, list[Violation]]:
    if not request.HasField("expire_time"):
        return None, []
    at = time_of(request.expire_time)
    return at, [] if at is not None else [Violation("expire_time", "is no time between the years 1970 and 9999")]


def _overlap(request: admin_pb2.RotateApiKeyRequest) -> tuple[float, list[Violation]]:
    overlap_s = seconds_of(request.overlap) if request.HasField("overlap") else DEFAULT_OVERLAP_S
    if overlap_s is None or not 0 <= overlap_s <= MAX_OVERLAP_S:
        return 0.0, [Violation("overlap", f"must be a duration of 0 to {MAX_OVERLAP_S:g} s")]
    return overlap_s, []


def _key_message(key: ApiKey) -> admin_pb2.ApiKey:
    return admin_pb2.ApiKey(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        display_name=key.display_name,
        create_time=timestamp(key.created_at),
        revoke_time=None if key.revoked_at is None else timestamp(key.revoked_at),
        expire_time=None if key.expires_at is None else timestamp(key.expires_at),
        models=key.models,
        adapters=key.adapters,
        replaces=key.replaces,
    )
