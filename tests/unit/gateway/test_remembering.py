"""What a gateway still knows of tenants when their store cannot be asked."""

from dataclasses import replace

import pytest

from gateway.errors import UnavailableError
from gateway.identity.directory import KnownKey
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.stores import ApiKey, KeyRecord, Tenant, TenantState


class Store:
    """A directory that can be away."""

    def __init__(self) -> None:
        self.away = False
        self.tenants = {name: Tenant(name, "", 1.0, 1000) for name in ("acme", "globex")}
        self.keys: dict[str, KeyRecord] = {}
        self.asked = 0

    def add(self, key_id: str, tenant_id: str = "acme") -> None:
        self.keys[key_id] = KeyRecord(ApiKey(key_id, tenant_id, "", 1.0), key_id.encode())

    async def find_key(self, key_id: str) -> KnownKey | None:
        self._ask()
        record = self.keys.get(key_id)
        tenant = self.tenants.get(record.api_key.tenant_id) if record else None
        return KnownKey(record, tenant) if record and tenant else None

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        self._ask()
        return self.tenants.get(tenant_id)

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise UnavailableError("away")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    store = Store()
    for key_id in ("k1", "k2"):
        store.add(key_id)
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(store: Store, clock: Clock) -> RememberingDirectory:
    return RememberingDirectory(store, 10.0, max_remembered=3, now=clock)


async def is_unknown(directory: RememberingDirectory, key_id: str) -> bool:
    try:
        return await directory.find_key(key_id) is None
    except UnavailableError:
        return True


async def test_the_store_is_asked_every_time_while_it_is_there(store: Store, directory: RememberingDirectory) -> None:
    for _ in range(3):
        await directory.find_key("k1")
        await directory.find_tenant("acme")
    assert store.asked == 6


async def test_what_was_read_is_known_while_the_store_is_away_and_nothing_else(
    store: Store, directory: RememberingDirectory
) -> None:
    known = await directory.find_key("k1")
    store.away = True
    assert await directory.find_key("k1") == known
    assert await directory.find_tenant("acme") == store.tenants["acme"]
    for unknown in (directory.find_key("k2"), directory.find_tenant("globex")):
        with pytest.raises(UnavailableError):
            await unknown


async def test_a_key_is_known_with_the_latest_that_was_read_of_its_tenant(
    store: Store, directory: RememberingDirectory
) -> None:
    await directory.find_key("k1")
    store.tenants["acme"] = replace(store.tenants["acme"], state=TenantState.SUSPENDED, cache_version=1001)
    await directory.find_key("k2")
    store.away = True
    found = await directory.find_key("k1")
    assert found is not None
    assert found.tenant == store.tenants["acme"]


async def test_what_was_read_too_long_ago_is_not_known(
    store: Store, directory: RememberingDirectory, clock: Clock
) -> None:
    await directory.find_key("k1")
    store.away = True
    clock.now += 10.0
    assert not await is_unknown(directory, "k1")
    clock.now += 0.001
    assert await is_unknown(directory, "k1")
    with pytest.raises(UnavailableError):
        await directory.find_tenant("acme")


async def test_reading_again_keeps_it_known(store: Store, directory: RememberingDirectory, clock: Clock) -> None:
    await directory.find_key("k1")
    clock.now += 9.0
    await directory.find_key("k1")
    store.away = True
    clock.now += 9.0
    assert not await is_unknown(directory, "k1")


async def test_keys_that_are_gone_or_revoked_are_forgotten_when_seen(
    store: Store, directory: RememberingDirectory
) -> None:
    await directory.find_key("k1")
    await directory.find_key("k2")
    del store.keys["k1"]
    store.keys["k2"] = replace(store.keys["k2"], api_key=replace(store.keys["k2"].api_key, revoked_at=2.0))
    for key_id in ("k1", "k2"):
        await directory.find_key(key_id)
        assert not directory.remembers_key(key_id)
    store.away = True
    assert await is_unknown(directory, "k1")
    assert await is_unknown(directory, "k2")


async def test_the_keys_of_a_tenant_that_is_gone_are_not_known(store: Store, directory: RememberingDirectory) -> None:
    await directory.find_key("k1")
    del store.tenants["acme"]
    await directory.find_tenant("acme")
    store.away = True
    assert await is_unknown(directory, "k1")


async def test_strangers_take_no_room(directory: RememberingDirectory) -> None:
    await directory.find_key("k1")
    for i in range(100):
        await directory.find_key(f"unknown-{i}")
        await directory.find_tenant(f"nobody-{i}")
    assert directory.remembers_key("k1")
    assert len(directory) == 2


async def test_there_is_a_bound_and_the_longest_unused_go_first(store: Store, directory: RememberingDirectory) -> None:
    for i in range(6):
        store.add(f"n{i}")
        await directory.find_key(f"n{i}")
        await directory.find_key("n0")
    assert [i for i in range(6) if directory.remembers_key(f"n{i}")] == [0, 4, 5]
    assert directory.remembers_tenant("acme")


async def test_who_asks_for_the_present_is_not_told_of_the_past(store: Store, directory: RememberingDirectory) -> None:
    await directory.find_key("k1")
    store.away = True
    with pytest.raises(UnavailableError):
        await directory.ask_for_key("k1")
    with pytest.raises(UnavailableError):
        await directory.ask_for_tenant("acme")


async def test_everything_can_be_forgotten(store: Store, directory: RememberingDirectory) -> None:
    await directory.find_key("k1")
    directory.forget_all()
    store.away = True
    assert await is_unknown(directory, "k1")
    assert len(directory) == 0
