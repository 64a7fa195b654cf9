import pytest

from gateway.errors import UnauthenticatedError
from gateway.identity.authenticator import AdminAuthenticator, TenantAuthenticator, bearer_token
from gateway.identity.credentials import Credential
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.stores import ApiKey, KeyRecord


class Failures:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def auth_failed(self, reason: str) -> None:
        self.reasons.append(reason)


async def make_key(keys: MemoryKeyStore, tenant_id: str) -> Credential:
    credential = Credential.generate()
    await keys.add(KeyRecord(ApiKey(credential.key_id, tenant_id, "", 1.0), credential.secret_hash()))
    return credential


@pytest.fixture
async def keys() -> MemoryKeyStore:
    tenants = MemoryTenantStore()
    await tenants.create("acme", "", 1.0)
    await tenants.create("globex", "", 1.0)
    return MemoryKeyStore(tenants)


async def test_every_key_of_a_tenant_stands_for_it(keys: MemoryKeyStore) -> None:
    authenticator = TenantAuthenticator(keys, Failures())
    for tenant_id in ("acme", "acme", "globex"):
        credential = await make_key(keys, tenant_id)
        assert await authenticator.authenticate(f"Bearer {credential}") == tenant_id


async def test_unknown_wrong_and_revoked_keys_get_the_same_answer(keys: MemoryKeyStore) -> None:
    failures = Failures()
    authenticator = TenantAuthenticator(keys, failures)
    known, revoked = await make_key(keys, "acme"), await make_key(keys, "acme")
    await keys.revoke(revoked.key_id, 2.0)
    wrong = Credential(known.key_id, Credential.generate().secret)
    answers = set()
    for token in (Credential.generate(), wrong, revoked, "nonsense"):
        with pytest.raises(UnauthenticatedError) as refusal:
            await authenticator.authenticate(f"Bearer {token}")
        answers.add((refusal.value.message, refusal.value.reason, tuple(refusal.value.metadata)))
    assert len(answers) == 1
    assert failures.reasons == ["unknown", "wrong_secret", "revoked", "malformed"]


async def test_a_revoked_key_with_a_wrong_secret_is_not_told_apart_by_the_observer(keys: MemoryKeyStore) -> None:
    failures = Failures()
    revoked = await make_key(keys, "acme")
    await keys.revoke(revoked.key_id, 2.0)
    with pytest.raises(UnauthenticatedError):
        await TenantAuthenticator(keys, failures).authenticate(f"Bearer {Credential(revoked.key_id, 'f' * 64)}")
    assert failures.reasons == ["wrong_secret"]


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
async def test_a_missing_key_is_refused_with_instructions(keys: MemoryKeyStore, authorization: str | None) -> None:
    failures = Failures()
    with pytest.raises(UnauthenticatedError, match="authorization: Bearer"):
        await TenantAuthenticator(keys, failures).authenticate(authorization)
    assert failures.reasons == ["missing"]


def test_the_scheme_may_be_written_either_way() -> None:
    assert bearer_token("bearer abc") == bearer_token("BEARER  abc ") == "abc"


async def test_the_admin_token_and_nothing_like_it_opens_the_admin_service() -> None:
    authenticator = AdminAuthenticator("correct-horse-battery", Failures())
    assert await authenticator.authenticate("Bearer correct-horse-battery") == ""
    for token in ("correct-horse-batter", "correct-horse-battery2", "Correct-horse-battery", "ключ"):
        with pytest.raises(UnauthenticatedError):
            await authenticator.authenticate(f"Bearer {token}")
