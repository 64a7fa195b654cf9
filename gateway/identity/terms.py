"""Which terms hold for a tenant: what the admin API has set for it, then the configuration."""

from typing import Protocol

from gateway.config import PolicyConfig
from gateway.identity.callers import Caller
from gateway.identity.stores import Tenant
from gateway.policy import Terms, terms_of


class TermsBook:
    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def of(self, tenant: Tenant) -> Terms:
        configured = self._config.tenants.get(tenant.tenant_id)
        return terms_of([tenant.policy, *([configured] if configured else []), self._config.default])


class KnownTenants(Protocol):
    def remembered_tenant(self, tenant_id: str) -> Tenant | None: ...


class TermsNow:
    """What holds by now for a caller that has been here for a while: terms may change while it waits."""

    def __init__(self, book: TermsBook, tenants: KnownTenants) -> None:
        self._book = book
        self._tenants = tenants

    def of(self, caller: Caller) -> Terms:
        tenant = self._tenants.remembered_tenant(caller.tenant_id)
        if tenant is None or tenant.created_at != caller.tenant.created_at:
            return caller.terms
        return self._book.of(tenant)
