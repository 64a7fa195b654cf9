"""The gateway's extra keys: from identity, and never the same for two callers who must not share."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import NotFoundError
from gateway.identity.adapters import Adapter
from gateway.identity.extra_keys import ConfiguredSecret, ExtraKeys
from gateway.identity.memory import MemoryTenantStore
from hicache.keys import EXTRA_KEY_BYTES, ExtraKey

SECRET = "a secret of the deployment"


@pytest.fixture
async def tenants() -> MemoryTenantStore:
    store = MemoryTenantStore()
    for tenant_id in ("a", "ab", "b"):
        await store.create(tenant_id, "", 1.0)
    return store


async def test_the_key_is_the_cache_librarys_digest_of_what_is_known_of_the_caller(tenants: MemoryTenantStore) -> None:
    digest = await ExtraKeys(tenants, ConfiguredSecret(SECRET)).digest("a", Adapter("lora", "r1"), "corpus")
    expected = ExtraKey(tenant="a", adapter="lora", adapter_revision="r1", cache_version=1000, scope="corpus")
    assert digest == expected.digest(SECRET.encode())
    assert len(digest) == EXTRA_KEY_BYTES


GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "extra_key.json").read_text())


class PinnedVersion(MemoryTenantStore):
    """Tenants whose cache version is given."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        return self._version


class PinnedSecret:
    async def secret(self) -> bytes:
        return bytes.fromhex(GOLDEN["secret_hex"])


@pytest.mark.parametrize("vector", GOLDEN["extra_keys"], ids=lambda vector: vector["name"])
async def test_the_keys_are_the_pinned_ones(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    adapter = Adapter(fields["adapter"], fields["adapter_revision"]) if fields["adapter"] else None
    if adapter is None and fields["adapter_revision"]:
        pytest.skip("a revision without an adapter: a gateway makes no such key")
    keys = ExtraKeys(PinnedVersion(fields["cache_version"]), PinnedSecret())
    assert (await keys.digest(fields["tenant"], adapter, fields["scope"])).hex() == vector["digest_hex"]


async def test_tenant_adapter_revision_and_scope_each_make_another_key(tenants: MemoryTenantStore) -> None:
    keys = ExtraKeys(tenants, ConfiguredSecret(SECRET))
    adapters = [None, Adapter("b", "c"), Adapter("bc", ""), Adapter("b", ""), Adapter("c", "b")]
    combinations = list(itertools.product(["a", "ab"], adapters, ["", "b", "bc", "ü", "\x00"]))
    digests = {await keys.digest(*combination) for combination in combinations}
    assert len(digests) == len(combinations)


async def test_the_same_caller_gets_the_same_key_until_its_version_is_bumped(tenants: MemoryTenantStore) -> None:
    keys = ExtraKeys(tenants, ConfiguredSecret(SECRET))
    seen = [await keys.digest("a", None, "")]
    assert await keys.digest("a", None, "") == seen[0]
    for _ in range(3):
        await tenants.bump_cache_version("a", "")
        seen.append(await keys.digest("a", None, ""))
    assert len(set(seen)) == 4
    assert await keys.digest("b", None, "") not in seen


async def test_an_adapters_bump_leaves_the_tenants_other_keys_alone(tenants: MemoryTenantStore) -> None:
    keys = ExtraKeys(tenants, ConfiguredSecret(SECRET))
    base, lora, other = [
        await keys.digest("a", adapter, "") for adapter in (None, Adapter("l", "r"), Adapter("m", "r"))
    ]
    await tenants.bump_cache_version("a", "l")
    assert await keys.digest("a", None, "") == base
    assert await keys.digest("a", Adapter("m", "r"), "") == other
    assert await keys.digest("a", Adapter("l", "r"), "") != lora


async def test_other_deployments_have_other_keys(tenants: MemoryTenantStore) -> None:
    one = await ExtraKeys(tenants, ConfiguredSecret(SECRET)).digest("a", None, "")
    assert one != await ExtraKeys(tenants, ConfiguredSecret(SECRET + "2")).digest("a", None, "")


async def test_without_its_tenant_there_is_no_key(tenants: MemoryTenantStore) -> None:
    with pytest.raises(NotFoundError):
        await ExtraKeys(tenants, ConfiguredSecret(SECRET)).digest("gone", None, "")
