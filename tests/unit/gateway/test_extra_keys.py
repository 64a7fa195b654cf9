"""The gateway's extra keys: from identity, and never the same for two callers who must not share."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.identity.adapters import Adapter
from gateway.identity.extra_keys import ConfiguredSecret, ExtraKeys
from gateway.identity.stores import Tenant
from hicache.keys import EXTRA_KEY_BYTES, ExtraKey

SECRET = "a secret of the deployment"


def tenant(tenant_id: str, version: int = 1000, bumps: Mapping[str, int] | None = None) -> Tenant:
    return Tenant(tenant_id, "", 1.0, version, adapter_versions=bumps or {})


@pytest.fixture
def keys() -> ExtraKeys:
    return ExtraKeys(ConfiguredSecret(SECRET))


async def test_the_key_is_the_cache_librarys_digest_of_what_is_known_of_the_caller(keys: ExtraKeys) -> None:
    digest = await keys.of_tenant(tenant("a", 1000, {"lora": 3, "other": 9}), Adapter("lora", "r1"), "corpus")
    expected = ExtraKey(tenant="a", adapter="lora", adapter_revision="r1", cache_version=1003, scope="corpus")
    assert digest == expected.digest(SECRET.encode())
    assert len(digest) == EXTRA_KEY_BYTES


GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "extra_key.json").read_text())


class PinnedSecret:
    async def secret(self) -> bytes:
        return bytes.fromhex(GOLDEN["secret_hex"])


@pytest.mark.parametrize("vector", GOLDEN["extra_keys"], ids=lambda vector: vector["name"])
async def test_the_keys_are_the_pinned_ones(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    adapter = Adapter(fields["adapter"], fields["adapter_revision"]) if fields["adapter"] else None
    if adapter is None and fields["adapter_revision"]:
        pytest.skip("a revision without an adapter: a gateway makes no such key")
    owner = tenant(fields["tenant"], fields["cache_version"])
    digest = await ExtraKeys(PinnedSecret()).of_tenant(owner, adapter, fields["scope"])
    assert digest.hex() == vector["digest_hex"]


async def test_tenant_adapter_revision_and_scope_each_make_another_key(keys: ExtraKeys) -> None:
    adapters = [None, Adapter("b", "c"), Adapter("bc", ""), Adapter("b", ""), Adapter("c", "b")]
    combinations = list(itertools.product(["a", "ab"], adapters, ["", "b", "bc", "ü", "\x00"]))
    digests = {await keys.of_tenant(tenant(tenant_id), adapter, scope) for tenant_id, adapter, scope in combinations}
    assert len(digests) == len(combinations)


async def test_the_same_caller_gets_the_same_key_until_its_version_is_bumped(keys: ExtraKeys) -> None:
    seen = [await keys.of_tenant(tenant("a", version), None, "") for version in (1000, 1000, 1001, 1002)]
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3
    assert await keys.of_tenant(tenant("b"), None, "") not in seen


async def test_an_adapters_bump_leaves_the_tenants_other_keys_alone(keys: ExtraKeys) -> None:
    for adapter, same in ((None, True), (Adapter("m", "r"), True), (Adapter("l", "r"), False)):
        before = await keys.of_tenant(tenant("a"), adapter, "")
        after = await keys.of_tenant(tenant("a", bumps={"l": 1}), adapter, "")
        assert (before == after) is same


async def test_other_deployments_have_other_keys(keys: ExtraKeys) -> None:
    other = ExtraKeys(ConfiguredSecret(SECRET + "2"))
    assert await keys.of_tenant(tenant("a"), None, "") != await other.of_tenant(tenant("a"), None, "")
    assert await keys.of_public_prefix("p", 1, None) != await other.of_public_prefix("p", 1, None)


async def test_a_public_prefix_is_no_tenants_and_its_own_for_each_version_and_adapter(keys: ExtraKeys) -> None:
    adapters = [None, Adapter("a", "r"), Adapter("a", "s")]
    combinations = list(itertools.product(["p", "pp"], [1, 2], adapters))
    public = {await keys.of_public_prefix(*each) for each in combinations}
    assert len(public) == len(combinations)
    own = {
        await keys.of_tenant(tenant(tenant_id, version), adapter, prefix_id)
        for tenant_id, (prefix_id, version, adapter) in itertools.product(["a", "p", "public"], combinations)
    }
    assert not public & own
