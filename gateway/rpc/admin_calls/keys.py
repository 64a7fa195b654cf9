"""API keys, as operators see them."""

import time

import structlog

from gateway.errors import NotFoundError
from gateway.identity.credentials import Credential
from gateway.identity.stores import ApiKey, KeyRecord, KeyStore, TenantStore
from gateway.rpc.admin_calls.messages import check_display_name, refuse, timestamp
from radixgate.v1 import admin_pb2

_log = structlog.get_logger(__name__)


class KeyCalls:
    def __init__(self, tenants: TenantStore, keys: KeyStore) -> None:
        self._tenants = tenants
        self._keys = keys

    async def create_api_key(self, request: admin_pb2.CreateApiKeyRequest) -> admin_pb2.CreateApiKeyResponse:
        refuse(check_display_name(request.display_name))
        credential = Credential.generate()
        key = ApiKey(credential.key_id, request.tenant_id, request.display_name, time.time())
        await self._keys.add(KeyRecord(key, credential.secret_hash()))
        _log.info("key created", tenant=key.tenant_id, key_id=key.key_id)
        return admin_pb2.CreateApiKeyResponse(api_key=_key_message(key), secret=str(credential))

    async def list_api_keys(self, request: admin_pb2.ListApiKeysRequest) -> admin_pb2.ListApiKeysResponse:
        if await self._tenants.get(request.tenant_id) is None:
            raise NotFoundError("tenant", request.tenant_id)
        keys = await self._keys.list_of(request.tenant_id)
        return admin_pb2.ListApiKeysResponse(api_keys=[_key_message(key) for key in keys])

    async def rotate_api_key(self, request: admin_pb2.RotateApiKeyRequest) -> admin_pb2.RotateApiKeyResponse:
        raise NotImplementedError

    async def revoke_api_key(self, request: admin_pb2.RevokeApiKeyRequest) -> admin_pb2.RevokeApiKeyResponse:
        key = await self._keys.revoke(request.key_id, time.time())
        if key is None:
            raise NotFoundError("key", request.key_id)
        _log.info("key revoked", tenant=key.tenant_id, key_id=key.key_id)
        return admin_pb2.RevokeApiKeyResponse(api_key=_key_message(key))


def _key_message(key: ApiKey) -> admin_pb2.ApiKey:
    return admin_pb2.ApiKey(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        display_name=key.display_name,
        create_time=timestamp(key.created_at),
        revoke_time=None if key.revoked_at is None else timestamp(key.revoked_at),
    )
