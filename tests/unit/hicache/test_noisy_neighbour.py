"""A tenant that floods all tiers takes nothing of what another one is promised."""

import pytest

from hicache.host import MirrorRules
from hicache.keys import PrefixKey
from hicache.radix.shares import Share
from tests.unit.hicache.support import key, namespace
from tests.unit.hicache.tiers import Tiers

FLOOR = Share(floor=0.25, weight=0.01)
NUM_SLOTS, NUM_HOST_SLOTS = 64, 128
RULES = MirrorRules(low_watermark=0.2, high_watermark=0.4, max_copy_tokens=16, retry_s=1.0)


def make(shares: dict[str, Share] | None = None) -> Tiers:
    return Tiers(NUM_SLOTS, NUM_HOST_SLOTS, rules=RULES, shares=shares or {"quiet": FLOOR})


def quiet_prefixes(num_tokens: int) -> list[PrefixKey]:
    return [key([first * 100 + n for n in range(8)], "quiet") for first in range(num_tokens // 8)]


def flood(tiers: Tiers, tenant: str, *, settles: bool = True) -> None:
    """Ten times all tiers."""
    for first in range(10 * (NUM_SLOTS + NUM_HOST_SLOTS) // 16):
        tiers.serve(key([first * 100 + 7 + n for n in range(16)], "noisy"), tenant=tenant)
        if settles:
            tiers.settle()
        else:
            tiers.tick(0.01)


def fill(tiers: Tiers, prefixes: list[PrefixKey]) -> None:
    for prefix in prefixes:
        tiers.serve(prefix, tenant="quiet")
        tiers.settle()


@pytest.mark.parametrize("noisy", ["noisy", ""])
def test_a_flood_costs_no_hit_below_the_floors_of_both_tiers(noisy: str) -> None:
    tiers = make({"quiet": FLOOR, "noisy": Share(floor=0.1)})
    prefixes = quiet_prefixes(16 + 32)
    fill(tiers, prefixes)
    flood(tiers, noisy)
    assert sum(tiers.cache.peek(prefix).total for prefix in prefixes) == 48
    for prefix in prefixes:
        with tiers.start(prefix, tenant="quiet") as lease:
            assert lease.hit.total == 7, "all but the last token"
        tiers.settle()


def test_a_flood_leaves_the_floor_on_the_device() -> None:
    tiers = make()
    prefixes = quiet_prefixes(16)
    fill(tiers, prefixes)
    flood(tiers, "noisy")
    assert sum(tiers.cache.peek(prefix).device for prefix in prefixes) == 16


def test_a_flood_leaves_the_floor_on_the_host() -> None:
    tiers = make()
    prefixes = quiet_prefixes(48)
    fill(tiers, prefixes)
    tiers.cache.prepare(NUM_SLOTS, now=tiers.now)
    tiers.settle()
    flood(tiers, "noisy")
    holdings = tiers.cache.holdings(namespace("quiet"))
    assert holdings.device == 16
    assert holdings.host >= 32
    assert sum(tiers.cache.peek(prefix).host for prefix in prefixes) == 32


def test_a_flood_whose_copies_all_hang_takes_no_promised_host_slot() -> None:
    tiers = make()
    prefixes = quiet_prefixes(48)
    fill(tiers, prefixes)
    tiers.cache.prepare(NUM_SLOTS, now=tiers.now)
    tiers.settle()
    flood(tiers, "noisy", settles=False)
    assert tiers.cache.holdings(namespace("quiet")).host >= 32


def test_a_tenant_that_floods_evicts_itself_on_the_host() -> None:
    tiers = make({"quiet": Share(weight=1.0), "noisy": Share(weight=1.0)})
    prefixes = quiet_prefixes(40)
    fill(tiers, prefixes)
    tiers.cache.prepare(NUM_SLOTS, now=tiers.now)
    tiers.settle()
    flood(tiers, "noisy")
    # A third of each tier is its fair part: 21 slots and 42.
    assert sum(tiers.cache.peek(prefix).total for prefix in prefixes) == 40


def test_who_asks_for_a_fetch_evicts_nobody_s_floor() -> None:
    wanted = key([n + 7 for n in range(128)], "noisy")
    writer = Tiers(256, 256)
    writer.serve(wanted)
    writer.mirror_everything()
    tiers = Tiers(NUM_SLOTS, NUM_HOST_SLOTS, rules=RULES, shares={"quiet": FLOOR}, store=writer.store)
    prefixes = quiet_prefixes(48)
    fill(tiers, prefixes)
    tiers.cache.prepare(NUM_SLOTS, now=tiers.now)
    tiers.settle()
    flood(tiers, "noisy")
    tiers.fetch(wanted.extend([1]), tenant="noisy")
    tiers.settle()
    assert tiers.cache.holdings(namespace("quiet")).host >= 32
