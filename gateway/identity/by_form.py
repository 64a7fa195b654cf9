"""Sends each call to whoever knows its kind of credential."""

from typing import Protocol

from gateway.identity.authenticator import bearer_token
from gateway.identity.callers import Caller, Credentials
from gateway.identity.tokens import is_token


class CallerAuthenticator(Protocol):
    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        """Return who calls. Raises UnauthenticatedError, PermissionDeniedError or UnavailableError."""
        ...


class ByForm:
    """Chooses by the form of the credential alone: one of them decides, and what it refuses no other one sees.

    An `authorization` always comes before a certificate.
    """

    def __init__(
        self,
        keys: CallerAuthenticator,
        tokens: CallerAuthenticator | None = None,
        certificates: CallerAuthenticator | None = None,
    ) -> None:
        """None: there are no such credentials here; calls that bring one are treated as if it were an API key."""
        self._keys = keys
        self._tokens = tokens
        self._certificates = certificates

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        return await self._for(credentials).authenticate(credentials, arrived_at)

    def _for(self, credentials: Credentials) -> CallerAuthenticator:
        if credentials.authorization is None:
            return self._certificates if self._certificates and credentials.certificate else self._keys
        token = bearer_token(credentials.authorization)
        return self._tokens if self._tokens and token and is_token(token) else self._keys
