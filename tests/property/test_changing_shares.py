"""However floors change, and whoever wants slots: what a tenant is promised, others' traffic does not take."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.cache import Lease, PrefixCache
from hicache.keys import PrefixKey
from hicache.radix import policy
from hicache.radix.shares import Share
from tests.unit.hicache.support import namespace

TENANTS = ("a", "b", "c", "d")
NUM_PAGES = 30
STEPS = 80


class World:
    """Tenants that compute and let go, in namespaces of their own, while floors come, change and go."""

    def __init__(self, seed: int, page_size: int, policy_name: str, configured: bool) -> None:
        self.chance = random.Random(seed)
        self.page_size = page_size
        shares = {"a": Share(floor=0.2, weight=2.0)} if configured else None
        self.cache = PrefixCache(
            NUM_PAGES * page_size, page_size=page_size, policy=policy.by_name(policy_name), shares=shares
        )
        self.running: list[tuple[str, Lease]] = []
        self.now = 0.0

    def held(self) -> dict[str, int]:
        """What each tenant has on the device, that leases hold and that they do not."""
        found = dict.fromkeys(TENANTS, 0)
        found.update({each.tenant: each.device for each in self.cache.tenants()})
        return found

    def serve(self) -> None:
        tenant = self.chance.choice(TENANTS)
        version = namespace(f"{tenant}{self.chance.randrange(2)}")
        tokens = [self.chance.randrange(2) for _ in range(self.chance.randint(1, 8) * self.page_size)]
        key = PrefixKey.of(version, tokens)
        self.now += 1
        lease = self.cache.acquire(key, now=self.now, max_tokens=len(key) - 1, tenant=tenant)
        before = self.held()
        missing = len(key) - lease.num_tokens
        if lease.reserve(missing, now=self.now):
            after = self.held()
            for other in TENANTS:
                if other != tenant:
                    assert after[other] >= min(before[other], self.cache.floor_slots(other)), other
            lease.commit(key, now=self.now)
        else:
            assert self.held() == before
        self.running.append((tenant, lease))
        if len(self.running) > 3 or self.chance.random() < 0.7:
            self.running.remove((tenant, lease))
            lease.release()

    def release(self) -> None:
        if self.running:
            self.running.pop(self.chance.randrange(len(self.running)))[1].release()

    def promise(self) -> None:
        asked = self.chance.choice([0, 0, 1, 2, 5, 10, NUM_PAGES]) * self.page_size
        before = self.held()
        self.cache.set_share(self.chance.choice(TENANTS), asked, self.chance.choice([0.5, 1.0, 4.0]))
        assert self.held() == before
        floors = sum(self.cache.floor_slots(tenant) for tenant in TENANTS)
        assert floors < self.cache.num_slots

    def drop(self) -> None:
        self.cache.drop(namespace(f"{self.chance.choice(TENANTS)}{self.chance.randrange(2)}"))

    def end(self) -> None:
        for _, lease in self.running:
            lease.release()
        for tenant in TENANTS:
            self.cache.set_share(tenant, 0)
        self.cache.check()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 4]),
    policy_name=st.sampled_from(policy.NAMES),
    configured=st.booleans(),
)
def test_others_never_take_what_a_tenant_is_promised(
    seed: int, page_size: int, policy_name: str, configured: bool
) -> None:
    world = World(seed, page_size, policy_name, configured)
    for _ in range(STEPS):
        world.chance.choice([world.serve, world.serve, world.serve, world.release, world.promise, world.drop])()
        world.cache.check()
    world.end()


def test_a_thousand_tenants_that_come_and_go_leave_as_many_accounts_as_have_floors() -> None:
    cache = PrefixCache(4_096)
    for number in range(1_000):
        tenant = f"t{number}"
        assert cache.set_share(tenant, 8) == 8
        with cache.acquire(PrefixKey.of(namespace(tenant), [1, 2, 3]), now=number, tenant=tenant) as lease:
            assert lease.reserve(3, now=number)
            lease.commit(PrefixKey.of(namespace(tenant), [1, 2, 3]), now=number)
        assert cache.set_share(tenant, 0) == 0
    assert len(cache._shares.accounts) == 1
    cache.check()


def test_floors_of_tenants_that_have_nothing_give_way_where_there_are_too_many() -> None:
    cache = PrefixCache(4_096)
    for number in range(1_000):
        assert cache.set_share(f"t{number}", 2) == 2
    assert len(cache._shares.accounts) < 300
    assert cache.floor_slots("t999") == 2
    assert cache.floor_slots("t0") == 0
    cache.check()


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_newcomer_gets_what_the_others_leave(page_size: int) -> None:
    cache = PrefixCache(1_600, page_size=page_size)
    assert cache.set_share("a", 800) == 800
    assert cache.set_share("b", 800) == 640  # a tenth belongs to everybody
    assert cache.set_share("c", 800) == 0
    assert cache.set_share("a", 80) == 80
    assert cache.set_share("c", 800) == 720
    assert cache.set_share("b", 0) == 0
    assert cache.set_share("a", 800) == 720
    assert cache.max_lease_slots == 160
    cache.check()


def test_a_floor_leaves_a_lease_of_others_what_it_may_need() -> None:
    cache = PrefixCache(1_000)
    assert cache.set_share("a", 800, largest_lease=500) == 500
    assert cache.set_share("a", 800, largest_lease=900) == 500  # it has been made sure of before
    assert cache.max_lease_slots_of("b") == 500
    assert cache.max_lease_slots_of("a") == 1_000
