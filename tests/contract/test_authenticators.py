"""Whoever recognises tenants keeps these promises, whatever the credential is."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.config import JwtConfig, PolicyConfig
from gateway.errors import PermissionDeniedError, UnauthenticatedError, UnavailableError
from gateway.identity.authenticator import TenantAuthenticator
from gateway.identity.by_form import ByForm, CallerAuthenticator
from gateway.identity.callers import Certificate, Credentials
from gateway.identity.certificates import CertificateAuthenticator
from gateway.identity.credentials import Credential
from gateway.identity.directory import KnownKey, StoreDirectory
from gateway.identity.key_ring import KeyRing
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.named_tenants import NamedTenants
from gateway.identity.stores import ApiKey, KeyRecord, Tenant, TenantState
from gateway.identity.terms import TermsBook
from gateway.identity.tokens import TokenAuthenticator
from gateway.policy import TenantPolicy
from tests.fakes.gateway_stack import RecordingObserver
from tests.fakes.identity_provider import AUDIENCE, ISSUER, key_set, private_key, public_jwk, token

POLICIES = PolicyConfig(tenants={"acme": TenantPolicy(weight=3.0)})
JWT = JwtConfig(jwks_file="keys.json", issuer=ISSUER, audience=AUDIENCE)
KEY = Credential.generate()


class Directory(StoreDirectory):
    """Tenants and keys in memory, which may be away."""

    away = False

    async def find_key(self, key_id: str) -> KnownKey | None:
        self._look()
        return await super().find_key(key_id)

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        self._look()
        return await super().find_tenant(tenant_id)

    def _look(self) -> None:
        if self.away:
            raise UnavailableError("away")


class World:
    """Two tenants, and one of each authenticator."""

    def __init__(self) -> None:
        self.tenants = MemoryTenantStore()
        self.keys = MemoryKeyStore(self.tenants)
        self.directory = Directory(self.tenants, self.keys)
        self.observer = RecordingObserver()
        terms = TermsBook(POLICIES)
        named = NamedTenants(self.directory, terms, self.observer)
        ring = KeyRing(lambda: key_set(public_jwk(private_key("ES256"), kid="first")), ["ES256"], 60.0, self.observer)
        ring.load()
        self.of_keys = TenantAuthenticator(self.directory, terms, self.observer)
        self.of_tokens = TokenAuthenticator(JWT, ring, named, self.observer)
        self.of_certificates = CertificateAuthenticator({"Acme Ltd": "acme"}, None, named, self.observer)
        self.by_form = ByForm(self.of_keys, self.of_tokens, self.of_certificates)

    async def open(self) -> "World":
        for tenant_id in ("acme", "globex"):
            await self.tenants.create(tenant_id, "", time.time())
        await self.keys.add(KeyRecord(ApiKey(KEY.key_id, "acme", "", time.time()), KEY.secret_hash()))
        return self


@dataclass(frozen=True)
class Kind:
    choose: Callable[[World], CallerAuthenticator]
    good: Credentials  # acme's
    bad: tuple[Credentials, ...]
    label: str


def bearer(text: str) -> Credentials:
    return Credentials(f"Bearer {text}")


BAD_KEYS = (bearer(str(Credential.generate())), bearer(str(KEY)[:-1]), bearer("rg_x"))
BAD_TOKENS = (bearer(token(exp=1)), bearer(token(tenant="initech")), bearer("a.b.c"))
BAD_CERTIFICATES = (Credentials(certificate=Certificate("nobody")), Credentials(certificate=Certificate("")))
ACME = Credentials(certificate=Certificate("Acme Ltd"))
KINDS = {
    "keys": Kind(lambda world: world.of_keys, bearer(str(KEY)), BAD_KEYS, f"key {KEY.key_id}"),
    "tokens": Kind(lambda world: world.of_tokens, bearer(token()), BAD_TOKENS, "token somebody"),
    "certificates": Kind(lambda world: world.of_certificates, ACME, BAD_CERTIFICATES, "certificate Acme Ltd"),
    "keys, by form": Kind(lambda world: world.by_form, bearer(str(KEY)), BAD_KEYS, f"key {KEY.key_id}"),
    "tokens, by form": Kind(lambda world: world.by_form, bearer(token()), BAD_TOKENS, "token somebody"),
    "certificates, by form": Kind(lambda world: world.by_form, ACME, BAD_CERTIFICATES, "certificate Acme Ltd"),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
async def world() -> World:
    return await World().open()


async def test_a_good_credential_is_its_tenants_with_the_terms_that_hold(world: World, kind: Kind) -> None:
    caller = await kind.choose(world).authenticate(kind.good, 12.5)
    assert (caller.tenant_id, caller.terms.weight) == ("acme", 3.0)
    assert (caller.credential, caller.arrived_at) == (kind.label, 12.5)
    assert world.observer.auth_failures == []


async def test_bad_ones_get_one_answer_and_are_counted_by_reason(world: World, kind: Kind) -> None:
    answers = set()
    for credentials in kind.bad:
        with pytest.raises(UnauthenticatedError) as caught:
            await kind.choose(world).authenticate(credentials, 0.0)
        answers.add((caught.value.reason, str(caught.value)))
    assert len(answers) == 1
    assert len(world.observer.auth_failures) == len(kind.bad)


async def test_nothing_at_all_is_refused(world: World, kind: Kind) -> None:
    with pytest.raises(UnauthenticatedError):
        await kind.choose(world).authenticate(Credentials(), 0.0)
    assert len(world.observer.auth_failures) == 1


async def test_a_suspended_tenant_is_told_so(world: World, kind: Kind) -> None:
    await world.tenants.set_state("acme", TenantState.SUSPENDED)
    with pytest.raises(PermissionDeniedError) as caught:
        await kind.choose(world).authenticate(kind.good, 0.0)
    assert caught.value.reason == "TENANT_SUSPENDED"
    assert world.observer.auth_failures == ["suspended"]


async def test_a_deleted_tenants_credentials_are_nobodys(world: World, kind: Kind) -> None:
    await world.tenants.delete("acme")
    with pytest.raises(UnauthenticatedError):
        await kind.choose(world).authenticate(kind.good, 0.0)


async def test_who_cannot_be_asked_for_is_not_refused_but_unavailable(world: World, kind: Kind) -> None:
    world.directory.away = True
    with pytest.raises(UnavailableError):
        await kind.choose(world).authenticate(kind.good, 0.0)
    assert world.observer.auth_failures == []


# ------------------------------------------------------------------------------------------------------------ by form


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer rg_x", "Bearer a.b.c"])
async def test_a_bad_authorization_is_not_made_good_by_a_certificate(world: World, authorization: str) -> None:
    with pytest.raises(UnauthenticatedError):
        await world.by_form.authenticate(Credentials(authorization, ACME.certificate), 0.0)


async def test_an_authorization_decides_over_a_certificate(world: World) -> None:
    both = Credentials(f"Bearer {token(tenant='globex')}", ACME.certificate)
    assert (await world.by_form.authenticate(both, 0.0)).tenant_id == "globex"


async def test_credentials_that_are_not_accepted_here_are_bad_keys(world: World) -> None:
    only_keys = ByForm(world.of_keys)
    for credentials in (ACME, bearer(token())):
        with pytest.raises(UnauthenticatedError):
            await only_keys.authenticate(credentials, 0.0)
    assert world.observer.auth_failures == ["missing", "malformed"]
