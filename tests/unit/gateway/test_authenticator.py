"""Who a credential stands for, and what makes it count no longer."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.config import PolicyConfig
from gateway.errors import PermissionDeniedError, UnauthenticatedError
from gateway.identity.authenticator import AdminAuthenticator, TenantAuthenticator, bearer_token
from gateway.identity.callers import Credentials
from gateway.identity.credentials import Credential
from gateway.identity.directory import StoreDirectory
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.stores import ApiKey, KeyRecord, TenantState
from gateway.identity.terms import TermsBook
from gateway.policy import TenantPolicy

NOW = 1_000.0


class Failures:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def auth_failed(self, reason: str) -> None:
        self.reasons.append(reason)


class World:
    """Two tenants in memory, and who recognises them at a time that tests set."""

    def __init__(self) -> None:
        self.tenants = MemoryTenantStore()
        self.keys = MemoryKeyStore(self.tenants)
        self.failures = Failures()
        self.now = NOW
        terms = TermsBook(PolicyConfig(default=TenantPolicy(priority=3)))
        directory = StoreDirectory(self.tenants, self.keys)
        self.authenticator = TenantAuthenticator(directory, terms, self.failures, lambda: self.now)

    async def key(self, tenant_id: str, **fields: Any) -> Credential:
        credential = Credential.generate()
        key = replace(ApiKey(credential.key_id, tenant_id, "", 1.0), **fields)
        await self.keys.add(KeyRecord(key, credential.secret_hash()))
        return credential

    async def refusal(self, authorization: str | None) -> UnauthenticatedError:
        with pytest.raises(UnauthenticatedError) as refusal:
            await self.authenticator.authenticate(Credentials(authorization), 5.0)
        return refusal.value


@pytest.fixture
async def world() -> World:
    world = World()
    for tenant_id in ("acme", "globex"):
        await world.tenants.create(tenant_id, "", 1.0)
    return world


def bearer(credential: Credential) -> Credentials:
    return Credentials(f"Bearer {credential}")


async def test_every_key_of_a_tenant_stands_for_it(world: World) -> None:
    for tenant_id in ("acme", "acme", "globex"):
        credential = await world.key(tenant_id)
        caller = await world.authenticator.authenticate(bearer(credential), 5.0)
        assert (caller.tenant_id, caller.arrived_at) == (tenant_id, 5.0)
        assert caller.credential == f"key {credential.key_id}"
        assert caller.terms.priority == 3


async def test_a_caller_may_use_what_both_tenant_and_key_allow(world: World) -> None:
    await world.tenants.create("narrow", "", 1.0, TenantPolicy(models=("a", "b"), adapters=("x",)))
    caller = await world.authenticator.authenticate(bearer(await world.key("narrow", models=("b", "c"))), 5.0)
    assert [name for name in "abcd" if caller.may_use_model(name)] == ["b"]
    assert [name for name in "xy" if caller.may_use_adapter(name)] == ["x"]
    caller = await world.authenticator.authenticate(bearer(await world.key("acme", adapters=("y",))), 5.0)
    assert [name for name in "xy" if caller.may_use_adapter(name)] == ["y"]
    assert caller.may_use_model("anything")


async def test_unknown_wrong_revoked_and_expired_keys_get_the_same_answer(world: World) -> None:
    known, revoked = await world.key("acme"), await world.key("acme")
    await world.keys.revoke(revoked.key_id, 2.0)
    wrong = Credential(known.key_id, Credential.generate().secret)
    expired = await world.key("acme", expires_at=NOW)
    answers = set()
    for token in (Credential.generate(), wrong, revoked, expired, "nonsense"):
        error = await world.refusal(f"Bearer {token}")
        answers.add((error.message, error.reason, tuple(error.metadata)))
    assert len(answers) == 1
    assert world.failures.reasons == ["unknown", "wrong_secret", "revoked", "expired", "malformed"]


async def test_a_key_counts_until_the_moment_it_expires(world: World) -> None:
    credential = await world.key("acme", expires_at=NOW + 1)
    await world.authenticator.authenticate(bearer(credential), 5.0)
    world.now = NOW + 0.999
    await world.authenticator.authenticate(bearer(credential), 5.0)
    world.now = NOW + 1
    await world.refusal(f"Bearer {credential}")


async def test_a_revoked_key_with_a_wrong_secret_is_not_told_apart_by_the_observer(world: World) -> None:
    revoked = await world.key("acme")
    await world.keys.revoke(revoked.key_id, 2.0)
    await world.refusal(f"Bearer {Credential(revoked.key_id, 'f' * 64)}")
    assert world.failures.reasons == ["wrong_secret"]


async def test_a_suspended_tenant_is_told_so_and_only_with_a_key_that_counts(world: World) -> None:
    credential = await world.key("acme")
    await world.tenants.set_state("acme", TenantState.SUSPENDED)
    with pytest.raises(PermissionDeniedError) as refusal:
        await world.authenticator.authenticate(bearer(credential), 5.0)
    assert refusal.value.reason == "TENANT_SUSPENDED"
    await world.refusal(f"Bearer {Credential(credential.key_id, 'f' * 64)}")
    assert world.failures.reasons == ["suspended", "wrong_secret"]
    await world.tenants.set_state("acme", TenantState.ACTIVE)
    await world.authenticator.authenticate(bearer(credential), 5.0)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
async def test_a_missing_key_is_refused_with_instructions(world: World, authorization: str | None) -> None:
    assert "authorization: Bearer" in (await world.refusal(authorization)).message
    assert world.failures.reasons == ["missing"]


def test_the_scheme_may_be_written_either_way() -> None:
    assert bearer_token("bearer abc") == bearer_token("BEARER  abc ") == "abc"


async def test_each_admin_token_stands_for_its_operator_and_nothing_like_it_for_anybody() -> None:
    failures = Failures()
    tokens = {"admin": "correct-horse-battery", "night-shift": "staple-of-the-night"}
    authenticator = AdminAuthenticator(tokens, failures)
    for name, token in tokens.items():
        assert (await authenticator.authenticate(Credentials(f"Bearer {token}"), 5.0)).name == name
    for token in ("correct-horse-batter", "correct-horse-battery2", "Correct-horse-battery", "ключ", "night-shift"):
        with pytest.raises(UnauthenticatedError):
            await authenticator.authenticate(Credentials(f"Bearer {token}"), 5.0)
    with pytest.raises(UnauthenticatedError):
        await authenticator.authenticate(Credentials(), 5.0)
    assert failures.reasons == ["wrong_secret"] * 5 + ["missing"]
