"""Floors and weights of tenants: who floods evicts itself, and nobody is refused what can be had."""

import random
from collections.abc import Callable

import pytest

from hicache.cache import Hit, Lease, PrefixCache
from hicache.keys import PrefixKey, Segment
from hicache.radix import policy
from hicache.radix.shares import Share, Shares
from hicache.slots import SlotAllocator
from tests.unit.hicache.support import drop, key, namespace, serve, start

POOL = 64
ACME = {"acme": Share(floor=0.25)}


def prompt(number: int, length: int = 4) -> list[int]:
    """Tokens that agree with those of no other number."""
    return [1000 * number + position for position in range(1, length + 1)]


def store(cache: PrefixCache, tenant: str, first: int, num_prompts: int, now: float, length: int = 4) -> None:
    for number in range(first, first + num_prompts):
        serve(cache, key(prompt(number, length), tenant), now, tenant=tenant)


def found(cache: PrefixCache, tenant: str, num_prompts: int, length: int = 4) -> int:
    """How many tokens of a tenant's prompts are cached."""
    return sum(cache.peek(key(prompt(number, length), tenant)).device for number in range(num_prompts))


def below(tenant: str, own: list[int], public: int = 8) -> PrefixKey:
    return PrefixKey((Segment(namespace("public"), range(public)), Segment(namespace(tenant), own)))


def take(cache: PrefixCache, num_slots: int, tenant: str, now: float = 100.0) -> Lease | None:
    """Reserve slots for a tenant without a hit; None if they can't be had."""
    lease = cache.acquire(key([]), now=now, tenant=tenant)
    if lease.reserve(num_slots, now=now):
        return lease
    lease.release()
    return None


# ----------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("floor", [-0.1, 1.0, 2.0, float("nan")])
def test_a_floor_is_a_part_of_the_pool(floor: float) -> None:
    with pytest.raises(ValueError, match="floor must be at least 0 and less than 1"):
        Share(floor=floor)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_greater_than_nothing(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be greater than 0"):
        Share(weight=weight)


def test_no_more_can_be_promised_than_there_is() -> None:
    with pytest.raises(ValueError, match="floors of all tenants must be less than 1 together"):
        PrefixCache(POOL, shares={"a": Share(floor=0.6), "b": Share(floor=0.6)})


def test_nobody_can_have_the_share_of_those_without_one() -> None:
    with pytest.raises(ValueError, match="needs the name of a tenant"):
        PrefixCache(POOL, shares={"": Share()})


def test_shares_are_in_whole_pages_and_a_fair_part_is_no_less_than_the_floor() -> None:
    shares = Shares({"a": Share(floor=0.4, weight=0.1), "b": Share(weight=2.9)}, 100, 50, 8)
    slots = [
        (account.floor_bytes / 4, account.fair_bytes / 4, account.host_floor_bytes / 4, account.host_fair_bytes / 4)
        for account in (shares.common, shares.of("a"), shares.of("b"))
    ]
    assert slots == [(0, 24, 0, 8), (40, 40, 16, 16), (0, 72, 0, 32)]
    assert shares.of("whoever") is shares.common
    assert shares.floor_bytes == 40 * 4


def test_a_lease_can_have_all_but_what_is_promised_to_others() -> None:
    assert PrefixCache(POOL, page_size=4).max_lease_slots == 64
    assert PrefixCache(POOL, page_size=4, shares=ACME).max_lease_slots == 48


# --------------------------------------------------------------------------------------------------------------- floods


@pytest.mark.parametrize("flooder", ["", "nobody in particular", "other"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("policy_name", policy.NAMES)
def test_a_flood_of_ten_pools_costs_nobody_else_a_floor_or_a_hit(
    flooder: str, page_size: int, policy_name: str
) -> None:
    shares = {**ACME, "other": Share(floor=0.1, weight=8.0)}
    cache = PrefixCache(POOL, page_size=page_size, policy=policy.by_name(policy_name), shares=shares)
    store(cache, "acme", 0, 4, 1.0)
    for number in range(10 * POOL // 4):
        serve(cache, key(prompt(number), flooder), 2.0 + number, tenant=flooder)
        assert cache.holdings(namespace("acme")).device == 16
    assert found(cache, "acme", 4) == 16
    assert cache.stats().evicted_tokens == 10 * POOL - (POOL - 16)
    cache.check()


def test_a_prompt_longer_than_what_is_left_is_refused_and_takes_nothing() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    store(cache, "acme", 0, 4, 1.0)
    assert take(cache, 49, "other") is None
    assert take(cache, 48, "other") is not None
    assert found(cache, "acme", 4) == 16
    cache.check()


def test_a_tenant_may_take_its_own_floor() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    store(cache, "acme", 0, 4, 1.0)
    assert take(cache, 64, "acme") is not None
    assert found(cache, "acme", 4) == 0
    cache.check()


def test_a_floor_that_is_not_used_is_there_for_others() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    assert cache.num_available_slots("other") == 64
    assert take(cache, 64, "other") is not None


# ------------------------------------------------------------------------------------------------------- who goes first

# Of 64 slots: 16 for acme, 32 for bolt, 16 for all others together; nobody has a floor.
THREE = {"acme": Share(), "bolt": Share(weight=2.0)}


def test_whoever_is_above_its_fair_part_goes_first_however_young() -> None:
    cache = PrefixCache(POOL, shares=THREE)
    store(cache, "bolt", 0, 8, 1.0)  # 32: no more than its part
    store(cache, "acme", 0, 8, 2.0)  # 32: twice its part
    held = take(cache, 8, "new")
    assert held is not None
    assert (found(cache, "bolt", 8), found(cache, "acme", 8)) == (32, 24)
    cache.check()


def test_nobody_is_cut_below_its_fair_part_while_somebody_else_is_above() -> None:
    cache = PrefixCache(POOL, shares=THREE)
    store(cache, "acme", 0, 1, 1.0, length=20)  # one prompt, a bit above its part, and the coldest
    store(cache, "bolt", 0, 1, 2.0, length=44)
    held = take(cache, 12, "new")
    assert held is not None
    assert (found(cache, "acme", 1, 20), found(cache, "bolt", 1, 44)) == (16, 36)
    cache.check()


def test_of_those_above_their_fair_part_the_coldest_goes_first() -> None:
    for first, second in (("acme", "other"), ("other", "acme")):
        cache = PrefixCache(POOL, shares=THREE)
        store(cache, first, 0, 8, 1.0)
        store(cache, second, 0, 8, 2.0)
        held = take(cache, 8, "bolt")
        assert held is not None
        assert (found(cache, first, 8), found(cache, second, 8)) == (24, 32)


def test_when_nobody_is_above_its_part_a_tenant_makes_room_from_its_own() -> None:
    cache = PrefixCache(POOL, shares=THREE)
    store(cache, "acme", 0, 4, 1.0)
    store(cache, "other", 0, 4, 2.0)
    store(cache, "bolt", 0, 8, 3.0)
    held = take(cache, 8, "bolt")
    assert held is not None
    assert (found(cache, "acme", 4), found(cache, "other", 4), found(cache, "bolt", 8)) == (16, 16, 24)


def test_whoever_has_nothing_takes_from_those_above_their_floor() -> None:
    cache = PrefixCache(POOL, shares={"acme": Share(floor=0.25), "bolt": Share(floor=0.25), "new": Share()})
    store(cache, "acme", 0, 4, 1.0)  # at its floor, and the coldest
    store(cache, "bolt", 0, 4, 2.0)
    store(cache, "new", 0, 4, 3.0)
    held = take(cache, 16, "other")
    assert held is not None
    assert take(cache, 16, "other") is not None
    assert (found(cache, "acme", 4), found(cache, "bolt", 4), found(cache, "new", 4)) == (16, 16, 0)
    assert take(cache, 1, "other") is None
    cache.check()


# ----------------------------------------------------------------------------------------------- without and within one


def hits(cache: PrefixCache, seed: int, tenant_of: Callable[[int], str]) -> list[int]:
    """What each request of a random conversation hits; `tenant_of` says on whose behalf one of five speakers asks."""
    choose = random.Random(seed)
    result: list[int] = []
    asked: dict[int, list[list[int]]] = {speaker: [[]] for speaker in range(5)}
    for now in range(300):
        speaker = choose.randrange(5)
        earlier = choose.choice(asked[speaker][-6:])
        tokens = [*earlier[: choose.randint(0, len(earlier))], *(choose.randint(0, 2) for _ in range(5))][:24]
        asked[speaker].append(tokens)
        result.append(serve(cache, key(tokens, f"speaker {speaker}"), float(now), tenant=tenant_of(speaker)))
    cache.check()
    return result


@pytest.mark.parametrize("policy_name", policy.NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_for_all_without_a_share_the_policy_alone_decides(policy_name: str, seed: int) -> None:
    expected = hits(PrefixCache(POOL, policy=policy.by_name(policy_name)), seed, lambda _: "")
    assert hits(PrefixCache(POOL, policy=policy.by_name(policy_name)), seed, lambda speaker: f"t{speaker}") == expected
    aside = PrefixCache(POOL, policy=policy.by_name(policy_name), shares={"idle": Share(floor=0.3, weight=5.0)})
    assert hits(aside, seed, lambda speaker: f"t{speaker}") == expected
    within = PrefixCache(POOL, policy=policy.by_name(policy_name), shares={"busy": Share(floor=0.3)})
    assert hits(within, seed, lambda _: "busy") == expected


# ------------------------------------------------------------------------------------------------------ what can be had


def assert_truthful(cache: PrefixCache, tenant: str) -> None:
    """As many slots can be reserved as are available, and not one more."""
    available = cache.num_available_slots(tenant)
    before = cache.stats()
    assert take(cache, available + 1, tenant) is None
    assert cache.stats() == before
    lease = take(cache, available, tenant)
    assert lease is not None
    cache.check()
    lease.release()
    cache.check()


@pytest.mark.parametrize("asks", ["acme", "other"])
@pytest.mark.parametrize("num_locked", range(5))
def test_what_is_locked_is_available_to_nobody_and_fills_a_floor(asks: str, num_locked: int) -> None:
    cache = PrefixCache(POOL, shares=ACME)
    leases = [start(cache, key(prompt(number), "acme"), 1.0, tenant="acme") for number in range(4)]
    store(cache, "acme", 4, 4, 2.0)  # 32 in all, of which 16 are the floor
    for lease in leases[num_locked:]:
        lease.release()
    locked = 4 * num_locked
    assert cache.num_available_slots(asks) == (64 - locked if asks == "acme" else 48)
    assert_truthful(cache, asks)


@pytest.mark.parametrize(
    ("asks", "held", "available"),
    [("acme", False, 64), ("acme", True, 52), ("other", False, 48), ("other", True, 40)],
)
def test_slots_of_a_public_prefix_above_a_floor_are_counted_and_can_be_had(
    asks: str, held: bool, available: int
) -> None:
    cache = PrefixCache(POOL, shares=ACME)
    leases = [start(cache, below("acme", prompt(number)), 1.0, tenant="acme") for number in range(4)]
    for lease in leases[1 if held else 0 :]:
        lease.release()
    # 8 public slots, 16 of acme's, which are its floor; a lease holds 4 of them, and the public ones.
    assert cache.num_available_slots(asks) == available
    assert_truthful(cache, asks)


def test_a_floor_below_a_public_prefix_is_touched_last() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    for number in range(4):
        serve(cache, below("acme", prompt(number)), 1.0, tenant="acme")
    store(cache, "other", 0, 10, 2.0)
    assert take(cache, 40, "new") is not None
    assert found(cache, "other", 10) == 0
    assert cache.holdings(namespace("acme")).device == 16


@pytest.mark.parametrize("seed", range(6))
def test_what_is_available_can_be_had_in_any_state(seed: int) -> None:
    choose = random.Random(seed)
    shares = {"acme": Share(floor=0.25), "bolt": Share(floor=0.125, weight=3.0), "calm": Share(weight=0.5)}
    cache = PrefixCache(POOL, page_size=2, shares=shares)
    tenants = ["", "acme", "bolt", "calm"]
    running: list[Lease] = []
    for now in range(250):
        tenant = choose.choice(tenants)
        own = [choose.randint(0, 1) for _ in range(choose.randint(1, 12))]
        asked = below(tenant, own, choose.choice([2, 6])) if choose.random() < 0.4 else key(own, tenant)
        lease = cache.acquire(asked, now=float(now), max_tokens=len(asked) - 1, tenant=tenant)
        if lease.reserve(len(asked) - lease.num_tokens, now=float(now)):
            lease.commit(asked, now=float(now))
        running.append(lease)
        while len(running) > choose.randint(0, 4):
            running.pop(choose.randrange(len(running))).release()
        if choose.random() < 0.05:
            drop(cache, choose.choice([*tenants, "public"]))
        cache.check()
        if choose.random() < 0.1:
            assert_truthful_in_pages(cache, choose.choice(tenants))


def assert_truthful_in_pages(cache: PrefixCache, tenant: str) -> None:
    available = cache.num_available_slots(tenant) // 2 * 2
    assert take(cache, available + 1, tenant) is None
    lease = take(cache, available, tenant)
    assert lease is not None
    cache.check()
    lease.release()


@pytest.mark.parametrize("seed", range(6))
def test_a_floor_holds_whatever_others_do(seed: int) -> None:
    choose = random.Random(seed)
    floors = {"acme": 0.25, "bolt": 0.125}
    cache = PrefixCache(POOL, shares={tenant: Share(floor=floor) for tenant, floor in floors.items()})
    for now in range(300):
        tenant = choose.choice(["acme", "bolt", "other", "others"])
        before = {name: cache.holdings(namespace(name)).device for name in floors}
        tokens = [choose.randint(0, 1), *prompt(choose.randint(0, 5), choose.randint(1, 16))]
        with cache.acquire(key(tokens, tenant), now=float(now), max_tokens=len(tokens) - 1, tenant=tenant) as lease:
            assert lease.reserve(len(tokens) - lease.num_tokens, now=float(now))
            lease.commit(key(tokens, tenant), now=float(now))
        for name, floor in floors.items():
            if name != tenant:
                assert cache.holdings(namespace(name)).device >= min(before[name], int(floor * POOL))
    cache.check()
    assert cache.stats().evicted_tokens > 0


# --------------------------------------------------------------------------------------------------- dropped and shared


def test_what_a_tenant_dropped_is_promised_to_nobody() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    store(cache, "acme", 0, 16, 1.0)
    cache.drop(namespace("acme"))
    assert cache.peek(key(prompt(0), "acme")).total == 0
    assert take(cache, 64, "other") is not None
    cache.check()


def test_a_namespace_belongs_to_whoever_stored_first_and_a_public_one_to_all() -> None:
    cache = PrefixCache(POOL, shares=ACME)
    serve(cache, below("acme", prompt(1)), 1.0, tenant="acme")
    common, acme = cache._shares.accounts
    assert (common.device_bytes, acme.device_bytes) == (8 * 4, 4 * 4)
    drop(cache, "acme")
    assert (common.device_bytes, acme.device_bytes) == (8 * 4, 0)


class Host:
    """Host slots for what a test settles by hand."""

    num_slots = POOL

    def __init__(self) -> None:
        self.slots = SlotAllocator(POOL)

    def free_packed(self, value: bytearray) -> None:
        raise AssertionError("nothing is to leave the host here")


def test_a_public_prefix_is_not_lost_before_the_copied_content_of_a_tenant_below_it() -> None:
    host = Host()
    cache = PrefixCache(POOL, shares=ACME, host=host)
    with start(cache, below("acme", prompt(1)), 1.0, tenant="acme") as lease:
        node = lease._node
    assert node is not None
    assert node.space is not None
    copied = host.slots.allocate(4)
    assert copied is not None
    node.host_value = bytearray(copied.tobytes())
    node.space.host_bytes += 16
    node.space.account.host_bytes += 16
    cache._tree.queues.settle(node)
    cache.check()
    assert cache._tree.queues.next_to_mirror() is node.above
    # acme's 4 slots are its floor, and hang below the public ones, which are counted on: they go to the host.
    assert take(cache, 56, "other") is not None
    assert cache.peek(below("acme", prompt(1))) == Hit(8, 4)
    cache.check()
