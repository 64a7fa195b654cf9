"""Turns what a call brings along into the caller it stands for, or refuses."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.errors import PermissionDeniedError, UnauthenticatedError
from gateway.identity.callers import Caller, Credentials, Operator
from gateway.identity.credentials import Credential
from gateway.identity.directory import Directory
from gateway.identity.stores import ApiKey, Tenant, TenantState
from gateway.identity.terms import TermsBook

# Compared against when there is no such key, so that unknown and wrong keys take the same path.
_NO_KEY = Credential("0" * 16, "0" * 64).secret_hash()


class AuthObserver(Protocol):
    def auth_failed(self, reason: str) -> None: ...


def bearer_token(authorization: str | None) -> str | None:
    """Return TOKEN of `Bearer TOKEN`, or None."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class TenantAuthenticator:
    """Recognises tenants by their API keys. Asks the directory for every call, so a revocation holds at once."""

    def __init__(
        self, directory: Directory, terms: TermsBook, observer: AuthObserver, now: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._terms = terms
        self._observer = observer
        self._now = now

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        """Return the caller.

        Raises UnauthenticatedError, PermissionDeniedError for a tenant that is suspended, or UnavailableError when
        the store is away and the credential is not known here.
        """
        token = bearer_token(credentials.authorization)
        if token is None:
            raise self._refused("missing", _MISSING.format("API_KEY"))
        credential = Credential.parse(token)
        if credential is None:
            raise self._refused("malformed", _REFUSED)
        found = await self._directory.find_key(credential.key_id)
        matches = credential.matches(found.key.secret_hash if found else _NO_KEY)
        if found is None:
            raise self._refused("unknown", _REFUSED)
        if not matches:
            raise self._refused("wrong_secret", _REFUSED)
        key = found.key.api_key
        if key.revoked_at is not None:
            raise self._refused("revoked", _REFUSED)
        if key.expires_at is not None and key.expires_at <= self._now():
            raise self._refused("expired", _REFUSED)
        return self._caller(key, found.tenant, arrived_at)

    def _caller(self, key: ApiKey, tenant: Tenant, arrived_at: float) -> Caller:
        if tenant.state is TenantState.SUSPENDED:
            self._observer.auth_failed("suspended")
            raise PermissionDeniedError("the tenant is suspended", reason="TENANT_SUSPENDED")
        return Caller(
            tenant,
            self._terms.of(tenant),
            f"key {key.key_id}",
            arrived_at,
            frozenset(key.models),
            frozenset(key.adapters),
        )

    def _refused(self, reason: str, message: str) -> UnauthenticatedError:
        self._observer.auth_failed(reason)
        return UnauthenticatedError(message)


class AdminAuthenticator:
    """Recognises operators by the configured tokens."""

    def __init__(self, tokens: Mapping[str, str], observer: AuthObserver) -> None:
        """`tokens` by the operator's name."""
        self._tokens = {name: token.encode() for name, token in tokens.items()}
        self._observer = observer

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Operator:
        """Raises UnauthenticatedError."""
        token = bearer_token(credentials.authorization)
        if token is None:
            self._observer.auth_failed("missing")
            raise UnauthenticatedError(_MISSING.format("ADMIN_TOKEN"))
        # All of them, whichever it is: how long it takes tells nothing.
        names = [name for name, known in self._tokens.items() if hmac.compare_digest(token.encode(), known)]
        if not names:
            self._observer.auth_failed("wrong_secret")
            raise UnauthenticatedError("the admin token is not the configured one")
        return Operator(names[0])


_MISSING = "no credential: send `authorization: Bearer {}`"
_REFUSED = "the API key is unknown or no longer valid"
