"""Which terms hold for a tenant: what the admin API has set for it, then the configuration."""

from gateway.config import PolicyConfig
from gateway.identity.stores import Tenant
from gateway.policy import Terms, terms_of


class TermsBook:
    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def of(self, tenant: Tenant) -> Terms:
        configured = self._config.tenants.get(tenant.tenant_id)
        return terms_of([tenant.policy, *([configured] if configured else []), self._config.default])
