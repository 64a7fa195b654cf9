"""Tenants that something verified has named: a signed token, a client's certificate."""

from typing import Protocol

from gateway.errors import PermissionDeniedError
from gateway.identity.callers import Caller
from gateway.identity.directory import Directory
from gateway.identity.stores import TenantState
from gateway.identity.terms import TermsBook
from gateway.policy import is_tenant_id

_MAX_NAME_CHARS = 64


class AuthObserver(Protocol):
    def auth_failed(self, reason: str) -> None: ...


class Refused(Exception):
    """What was named is no tenant."""


class NamedTenants:
    def __init__(self, directory: Directory, terms: TermsBook, observer: AuthObserver) -> None:
        self._directory = directory
        self._terms = terms
        self._observer = observer

    async def caller(
        self,
        tenant_id: str,
        credential: str,
        arrived_at: float,
        models: frozenset[str] = frozenset(),
        adapters: frozenset[str] = frozenset(),
    ) -> Caller:
        """Return the tenant's call.

        Raises Refused for what is no tenant, PermissionDeniedError for one that is suspended, or UnavailableError when
        the store is away and the tenant is not known here.
        """
        tenant = await self._directory.find_tenant(tenant_id) if is_tenant_id(tenant_id) else None
        if tenant is None:
            raise Refused
        if tenant.state is TenantState.SUSPENDED:
            self._observer.auth_failed("suspended")
            raise PermissionDeniedError("the tenant is suspended", reason="TENANT_SUSPENDED")
        return Caller(tenant, self._terms.of(tenant), credential, arrived_at, models, adapters)


def label(kind: str, name: str) -> str:
    """Return how logs call a credential: one line of printable ASCII, whatever its maker wrote."""
    shown = "".join(char if " " <= char <= "~" else "?" for char in name[:_MAX_NAME_CHARS])
    return f"{kind} {shown or '-'}"
