"""Which tokens count. Each bad one is made for one reason, and gets one answer."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.config import JwtConfig, PolicyConfig
from gateway.errors import PermissionDeniedError, UnauthenticatedError, UnavailableError
from gateway.identity.callers import Caller, Credentials
from gateway.identity.directory import StoreDirectory
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.named_tenants import NamedTenants
from gateway.identity.signing_keys import KeySet, SigningKey, parse_keys
from gateway.identity.stores import TenantState
from gateway.identity.terms import TermsBook
from gateway.identity.tokens import MAX_TOKEN_CHARS, TokenAuthenticator
from tests.fakes.gateway_stack import RecordingObserver
from tests.fakes.identity_provider import AUDIENCE, ISSUER, key_set, private_key, public_jwk, token

CONFIG = JwtConfig(jwks_file="keys.json", issuer=ISSUER, audience=AUDIENCE, leeway_s=5.0)
KEYS = parse_keys(
    key_set(
        public_jwk(private_key("ES256"), kid="first"),
        public_jwk(private_key("RS256"), kid="rsa"),
        public_jwk(private_key("EdDSA"), kid="ed"),
        public_jwk(private_key("ES256", "pinned"), kid="pinned", alg="ES256"),
        public_jwk(private_key("ES256", "sealing"), kid="sealing", use="enc"),
    ),
    CONFIG.algorithms,
)


class Published:
    """Keys that are there, or are not yet."""

    def __init__(self, keys: KeySet | None) -> None:
        self._keys = keys

    @property
    def known(self) -> bool:
        return self._keys is not None

    async def find(self, kid: str | None, algorithm: str) -> Sequence[SigningKey]:
        return self._keys.candidates(kid, algorithm) if self._keys else ()


class Door:
    """An authenticator of tokens in front of two tenants."""

    def __init__(self, config: JwtConfig = CONFIG, keys: KeySet | None = KEYS) -> None:
        self.observer = RecordingObserver()
        self.tenants = MemoryTenantStore()
        directory = StoreDirectory(self.tenants, MemoryKeyStore(self.tenants))
        named = NamedTenants(directory, TermsBook(PolicyConfig()), self.observer)
        self._authenticator = TokenAuthenticator(config, Published(keys), named, self.observer)

    async def open(self) -> "Door":
        for tenant_id in ("acme", "globex"):
            await self.tenants.create(tenant_id, "", time.time())
        return self

    async def enter(self, text: str) -> Caller:
        return await self._authenticator.authenticate(Credentials(f"Bearer {text}"), time.monotonic())

    async def refusal(self, text: str) -> tuple[str, str]:
        """Return what the caller is told, and what is counted."""
        with pytest.raises(UnauthenticatedError) as caught:
            await self.enter(text)
        (reason,) = self.observer.auth_failures
        return f"{caught.value.reason}: {caught.value}", reason


@pytest.fixture
async def door() -> Door:
    return await Door().open()


def unsigned(header: dict[str, Any], signature: bytes = b"", **claims: Any) -> str:
    """Return a good token's claims under any header and signature."""
    _, payload, _ = token(**claims).split(".")
    return f"{encoded(json.dumps(header).encode())}.{payload}.{encoded(signature)}"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def signed_with_the_public_key() -> str:
    """The classic: HS256, with what everybody may know as the secret."""
    pem = private_key("RS256").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    content = unsigned({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
    return f"{content}.{encoded(hmac.digest(pem, content.encode(), hashlib.sha256))}"


def altered(claim: str, value: Any) -> str:
    """A good token of which somebody changed a claim."""
    header, _, signature = token().split(".")
    return f"{header}.{token(**{claim: value}).split('.')[1]}.{signature}"


BAD: dict[str, tuple[str, str]] = {
    "alg none": (unsigned({"alg": "none", "kid": "first"}), "token_algorithm"),
    "alg nOnE": (unsigned({"alg": "nOnE", "kid": "first"}), "token_algorithm"),
    "no alg": (unsigned({"kid": "first"}), "token_algorithm"),
    "alg is a list": (unsigned({"alg": ["ES256"], "kid": "first"}), "token_algorithm"),
    "HS256 with the public key": (signed_with_the_public_key(), "token_algorithm"),
    "an algorithm that is not configured": (
        token(private_key("ES384"), "ES384", {"kid": "first"}),
        "token_algorithm",
    ),
    "no signature": (unsigned({"alg": "ES256", "kid": "first"}), "token_signature"),
    "another tenant, same signature": (altered("tenant", "globex"), "token_signature"),
    "longer life, same signature": (altered("exp", 9e9), "token_signature"),
    "unknown kid": (token(header={"kid": "nobody"}), "token_key"),
    "kid of a key of another type": (token(header={"kid": "rsa"}), "token_key"),
    "kid of another key": (token(private_key("ES256", "stranger")), "token_signature"),
    "no kid, two to choose from": (token(header={"kid": None}), "token_key"),
    "a key for encryption": (token(private_key("ES256", "sealing"), header={"kid": "sealing"}), "token_key"),
    "expired": (token(exp=time.time() - 6), "token_expired"),
    "no exp": (token(exp=None), "token_claims"),
    "exp is text": (token(exp=str(time.time() + 86_400)), "token_claims"),
    "exp is true": (token(exp=True), "token_claims"),
    "not valid yet": (token(nbf=time.time() + 80_000), "token_not_yet_valid"),
    "not valid before any time there is": (token(nbf=10**400), "token_not_yet_valid"),
    "expired before any time there is": (token(exp=-(10**400)), "token_expired"),
    "exp is no number": (token(exp=float("nan")), "token_claims"),
    "nbf is a list": (token(nbf=[0]), "token_claims"),
    "another audience": (token(aud="others"), "token_audience"),
    "a list of other audiences": (token(aud=["others", "radixgate2"]), "token_audience"),
    "no audience": (token(aud=None), "token_claims"),
    "another issuer": (token(iss=ISSUER + "/"), "token_issuer"),
    "no issuer": (token(iss=None), "token_claims"),
    "no tenant": (token(tenant=None), "token_claims"),
    "tenant is a list": (token(tenant=["acme"]), "token_claims"),
    "tenant is an object": (token(tenant={"id": "acme"}), "token_claims"),
    "a tenant that does not exist": (token(tenant="initech"), "token_tenant"),
    "no tenant's id": (token(tenant="ac:me"), "token_tenant"),
    "a tenant's id with more behind": (token(tenant="acme\n"), "token_tenant"),
    "no tenant's id at all": (token(tenant=""), "token_tenant"),
    "models is text": (token(models="a b"), "token_claims"),
    "models allows none": (token(models=[]), "token_claims"),
    "adapters has a number": (token(adapters=["a", 1]), "token_claims"),
    "something critical": (token(header={"crit": ["exp"], "exp": 1}), "token_malformed"),
    "too long": (token(padding="x" * MAX_TOKEN_CHARS), "token_malformed"),
    "no token": ("a.b.c", "token_malformed"),
    "a header that never ends": (f"{encoded(b'[' * 9000)}.e30.AA", "token_malformed"),
    "a header that is a list": (f"{encoded(b'[]')}.e30.AA", "token_malformed"),
    "not ASCII": ("ä.ö.ü", "token_malformed"),
    "empty": ("..", "token_malformed"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
async def test_a_bad_token_gets_the_one_answer(door: Door, text: str, reason: str) -> None:
    told, counted = await door.refusal(text)
    assert told == "CREDENTIAL_REFUSED: the token is not valid here, or no longer"
    assert counted == reason


@pytest.mark.parametrize(("algorithm", "kid"), [("ES256", "first"), ("RS256", "rsa"), ("EdDSA", "ed")])
async def test_a_good_token_is_its_tenants(door: Door, algorithm: str, kid: str) -> None:
    caller = await door.enter(token(algorithm=algorithm, header={"kid": kid}, tenant="globex"))
    assert (caller.tenant_id, caller.credential) == ("globex", "token somebody")
    assert caller.may_use_model("anything")
    assert door.observer.auth_failures == []


async def test_clocks_may_differ_by_the_leeway(door: Door) -> None:
    now = time.time()
    assert (await door.enter(token(exp=now - 3, nbf=now + 3))).tenant_id == "acme"


async def test_one_audience_of_several_is_enough(door: Door) -> None:
    assert (await door.enter(token(aud=["others", AUDIENCE]))).tenant_id == "acme"


async def test_claims_narrow_what_the_bearer_may_use(door: Door) -> None:
    caller = await door.enter(token(models=["small"], adapters=["sql", "support"]))
    assert (caller.may_use_model("small"), caller.may_use_model("large")) == (True, False)
    assert (caller.may_use_adapter("sql"), caller.may_use_adapter("other")) == (True, False)


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("tenant", {"tenant": "globex"}),
        ("org.tenant", {"tenant": "acme", "org": {"tenant": "globex"}}),
        ("https://issuer.example/tenant", {"tenant": "acme", "https://issuer.example/tenant": "globex"}),
        ("org.tenant", {"org.tenant": "globex", "org": {"tenant": "acme"}}),
    ],
    ids=["plain", "path", "URI", "exact name first"],
)
async def test_the_tenants_claim_can_be_anywhere(path: str, claims: dict[str, Any]) -> None:
    config = JwtConfig(jwks_file="f", issuer=ISSUER, audience=AUDIENCE, tenant_claim=path)
    door = await Door(config).open()
    assert (await door.enter(token(**claims))).tenant_id == "globex"


@pytest.mark.parametrize("org", ["acme", None, ["tenant"], {}], ids=str)
async def test_a_path_that_leads_nowhere_is_no_tenant(org: object) -> None:
    config = JwtConfig(jwks_file="f", issuer=ISSUER, audience=AUDIENCE, tenant_claim="org.tenant")
    door = await Door(config).open()
    assert (await door.refusal(token(org=org)))[1] == "token_claims"


async def test_subjects_are_one_short_line_in_logs(door: Door) -> None:
    assert (await door.enter(token(sub="a\nb\x1b[1mü" + "c" * 500))).credential == "token a?b?[1m?" + "c" * 56
    assert (await door.enter(token(sub=None))).credential == "token -"
    assert (await door.enter(token(sub=7))).credential == "token -"


async def test_a_suspended_tenants_token_is_no_secret_to_its_bearer(door: Door) -> None:
    await door.tenants.set_state("acme", TenantState.SUSPENDED)
    with pytest.raises(PermissionDeniedError) as caught:
        await door.enter(token())
    assert caught.value.reason == "TENANT_SUSPENDED"
    assert door.observer.auth_failures == ["suspended"]


async def test_before_there_were_any_keys_nobody_is_called_a_liar() -> None:
    door = await Door(keys=None).open()
    with pytest.raises(UnavailableError):
        await door.enter(token())
    assert door.observer.auth_failures == []


async def test_a_set_without_keys_verifies_nothing() -> None:
    door = await Door(keys=KeySet()).open()
    assert (await door.refusal(token()))[1] == "token_key"
