"""What quotas may rely on, whoever tells them what holds now."""

import pytest

from gateway.config import PolicyConfig
from gateway.identity.callers import Caller
from gateway.identity.stores import Tenant
from gateway.identity.terms import TermsBook, TermsNow
from gateway.policy import TenantPolicy, Terms
from gateway.quota.quotas import CurrentTerms
from tests.fakes.terms import TermsOfATest


class Known:
    def __init__(self, tenant: Tenant | None) -> None:
        self.tenant = tenant

    def remembered_tenant(self, tenant_id: str) -> Tenant | None:
        return self.tenant


CAME = Caller(Tenant("acme", "", 1000.0, 1), Terms(max_concurrent_requests=3), "key 1", 0.0)


def now(tenant: Tenant | None) -> TermsNow:
    return TermsNow(TermsBook(PolicyConfig(default=TenantPolicy(requests_per_minute=9))), Known(tenant))


@pytest.mark.parametrize(
    "terms",
    [now(None), now(Tenant("acme", "", 2000.0, 1)), TermsOfATest()],
    ids=["unknown", "another tenant under its id", "fake"],
)
def test_what_a_caller_came_with_holds_where_nothing_else_is_known(terms: CurrentTerms) -> None:
    assert terms.of(CAME) == CAME.terms


def test_what_is_known_of_the_tenant_by_now_holds() -> None:
    policy = TenantPolicy(max_concurrent_requests=5)
    fake = TermsOfATest()
    fake.changed = Terms(requests_per_minute=9, max_concurrent_requests=5)
    for terms in (now(Tenant("acme", "", 1000.0, 1, policy=policy)), fake):
        assert terms.of(CAME) == Terms(requests_per_minute=9, max_concurrent_requests=5)
