"""Turns the `authorization` entry of a call into the caller it stands for, or refuses."""

import hmac
from typing import Protocol

from gateway.errors import UnauthenticatedError
from gateway.identity.credentials import Credential
from gateway.identity.stores import KeyStore

# Compared against when there is no such key, so that unknown and wrong keys take the same path.
_NO_KEY = Credential("0" * 16, "0" * 64).secret_hash()


class AuthObserver(Protocol):
    def auth_failed(self, reason: str) -> None: ...


def bearer_token(authorization: str | None) -> str | None:
    """Return TOKEN of `Bearer TOKEN`, or None."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class TenantAuthenticator:
    """Recognises tenants by their API keys. Asks the store for every call, so a revocation holds at once."""

    def __init__(self, keys: KeyStore, observer: AuthObserver) -> None:
        self._keys = keys
        self._observer = observer

    async def authenticate(self, authorization: str | None) -> str:
        """Return the tenant's id. Raises UnauthenticatedError, or UnavailableError when the store is away."""
        token = bearer_token(authorization)
        if token is None:
            raise self._refused("missing", _MISSING.format("API_KEY"))
        credential = Credential.parse(token)
        if credential is None:
            raise self._refused("malformed", _REFUSED)
        record = await self._keys.find(credential.key_id)
        matches = credential.matches(record.secret_hash if record else _NO_KEY)
        if record is None:
            raise self._refused("unknown", _REFUSED)
        if not matches:
            raise self._refused("wrong_secret", _REFUSED)
        if record.api_key.revoked_at is not None:
            raise self._refused("revoked", _REFUSED)
        return record.api_key.tenant_id

    def _refused(self, reason: str, message: str) -> UnauthenticatedError:
        self._observer.auth_failed(reason)
        return UnauthenticatedError(message)


class AdminAuthenticator:
    """Recognises the operator by the configured token."""

    def __init__(self, token: str, observer: AuthObserver) -> None:
        self._token = token.encode()
        self._observer = observer

    async def authenticate(self, authorization: str | None) -> str:
        """Return "", the operator's tenant. Raises UnauthenticatedError."""
        token = bearer_token(authorization)
        if token is None:
            self._observer.auth_failed("missing")
            raise UnauthenticatedError(_MISSING.format("ADMIN_TOKEN"))
        if not hmac.compare_digest(token.encode(), self._token):
            self._observer.auth_failed("wrong_secret")
            raise UnauthenticatedError("the admin token is not the configured one")
        return ""


_MISSING = "no credential: send the metadata entry `authorization: Bearer {}`"
_REFUSED = "the API key is unknown or no longer valid"
