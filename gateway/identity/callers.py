"""Who makes a call: a tenant with one of its credentials, or an operator."""

from dataclasses import dataclass

from gateway.identity.stores import Tenant
from gateway.policy import Terms


@dataclass(frozen=True, slots=True)
class Certificate:
    """The identities in a client's verified TLS certificate."""

    common_name: str
    alternative_names: tuple[str, ...] = ()  # DNS names and URIs


@dataclass(frozen=True, slots=True)
class Credentials:
    """All that a call brings along to say who makes it."""

    authorization: str | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant's call: what was known of the tenant when it arrived, and what its credential narrows that to."""

    tenant: Tenant
    terms: Terms
    credential: str  # for logs and to find its streams: "key KEYID", "token SUBJECT", "certificate NAME"
    arrived_at: float  # `time.monotonic`
    models: frozenset[str] = frozenset()  # of this credential; none named: all of the tenant
    adapters: frozenset[str] = frozenset()

    @property
    def tenant_id(self) -> str:
        return self.tenant.tenant_id

    def may_use_model(self, name: str) -> bool:
        return all(not names or name in names for names in (self.terms.models, self.models))

    def may_use_adapter(self, name: str) -> bool:
        return all(not names or name in names for names in (self.terms.adapters, self.adapters))


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of the admin API. `name` is that of the credential, which is no secret."""

    name: str


Principal = Caller | Operator
