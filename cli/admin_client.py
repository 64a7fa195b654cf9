"""The operator's side of the admin API: tenants and keys as plain values."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from radixgate.v1 import admin_pb2, admin_pb2_grpc

_TIMEOUT_S = 10.0
_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant_id: str
    display_name: str
    create_time: str  # RFC 3339
    cache_version: int

    @classmethod
    def of(cls, message: admin_pb2.Tenant) -> Self:
        return cls(message.tenant_id, message.display_name, _time(message.create_time), message.cache_version)


@dataclass(frozen=True, slots=True)
class Key:
    key_id: str
    tenant_id: str
    display_name: str
    create_time: str  # RFC 3339
    revoke_time: str | None

    @classmethod
    def of(cls, message: admin_pb2.ApiKey) -> Self:
        revoked = _time(message.revoke_time) if message.HasField("revoke_time") else None
        return cls(message.key_id, message.tenant_id, message.display_name, _time(message.create_time), revoked)


class AdminClient:
    """Calls AdminService with the operator's token. Methods raise grpc.RpcError."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)

    def create_tenant(self, tenant_id: str, display_name: str = "") -> Tenant:
        request = admin_pb2.CreateTenantRequest(tenant_id=tenant_id, display_name=display_name)
        answer = self._stub.CreateTenant(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        return Tenant.of(answer.tenant)

    def ensure_tenant(self, tenant_id: str) -> None:
        """Create a tenant unless there is one of this name."""
        try:
            self.create_tenant(tenant_id)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise

    def get_tenant(self, tenant_id: str) -> Tenant:
        request = admin_pb2.GetTenantRequest(tenant_id=tenant_id)
        return Tenant.of(self._stub.GetTenant(request, timeout=_TIMEOUT_S, metadata=self._metadata).tenant)

    def list_tenants(self) -> Iterator[Tenant]:
        token = ""
        while True:
            request = admin_pb2.ListTenantsRequest(page_size=_PAGE_SIZE, page_token=token)
            page = self._stub.ListTenants(request, timeout=_TIMEOUT_S, metadata=self._metadata)
            yield from map(Tenant.of, page.tenants)
            token = page.next_page_token
            if not token:
                return

    def create_key(self, tenant_id: str, display_name: str = "") -> tuple[Key, str]:
        """Return the key's description and the key itself, which cannot be read again."""
        request = admin_pb2.CreateApiKeyRequest(tenant_id=tenant_id, display_name=display_name)
        answer = self._stub.CreateApiKey(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        return Key.of(answer.api_key), answer.secret

    def list_keys(self, tenant_id: str) -> list[Key]:
        request = admin_pb2.ListApiKeysRequest(tenant_id=tenant_id)
        answer = self._stub.ListApiKeys(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        return [Key.of(message) for message in answer.api_keys]

    def revoke_key(self, key_id: str) -> Key:
        request = admin_pb2.RevokeApiKeyRequest(key_id=key_id)
        return Key.of(self._stub.RevokeApiKey(request, timeout=_TIMEOUT_S, metadata=self._metadata).api_key)


@contextmanager
def admin_client(target: str, token: str) -> Iterator[AdminClient]:
    with grpc.insecure_channel(target) as channel:
        yield AdminClient(channel, token)


def data_folder() -> Path:
    """Where `radixgate serve` keeps what belongs to this user."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "radixgate"


def admin_token_file() -> Path:
    """Where `radixgate serve` leaves the admin token that it made, for commands of the same user."""
    return data_folder() / "admin-token"


def _time(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime(tzinfo=UTC).isoformat(timespec="seconds")
