"""A lease whose owner computes behind a load that is under way: what it may, and what is left when the load fails."""

import numpy as np
import pytest

from hicache.copies.transfer import Ticket
from hicache.errors import LeaseError
from hicache.tiered import TieredLease
from tests.unit.hicache.support import key
from tests.unit.hicache.tiers import Tiers

LONG = list(range(100, 116))
MORE = key([*LONG, 1, 2, 3])


class Gate:
    def wait(self, layer: int) -> None: ...


@pytest.fixture(params=[1, 4])
def tiers(request: pytest.FixtureRequest) -> Tiers:
    tiers = Tiers(page_size=request.param)
    tiers.to_host(key(LONG))
    return tiers


def following(tiers: Tiers) -> tuple[TieredLease, Ticket]:
    lease = tiers.load(MORE)
    [ticket] = tiers.copies
    tiers.transfer.begin(ticket)
    ticket.open(Gate())
    lease.follow()
    return lease, ticket


def test_without_a_gate_nobody_follows(tiers: Tiers) -> None:
    with pytest.raises(LeaseError, match="no gate"):
        tiers.load(MORE).follow()


def test_a_follower_reserves_behind_the_load_and_commits_when_it_has_ended(tiers: Tiers) -> None:
    lease, ticket = following(tiers)
    assert lease.num_tokens == 16
    assert lease.reserve(3, now=tiers.now)
    assert (lease.num_tokens, lease.loading) == (19, True)
    slots = lease.slots.copy()
    with pytest.raises(LeaseError, match="loading"):
        lease.commit(MORE, now=tiers.now)
    tiers.cache.check()
    tiers.transfer.finish(ticket)
    tiers.tick()
    assert (lease.num_tokens, lease.loading, lease.hit.host) == (19, False, 16)
    assert np.array_equal(lease.slots, slots)
    lease.commit(MORE, now=tiers.now)
    tiers.cache.check()
    lease.release()
    tiers.settle()


def test_when_the_load_fails_what_was_reserved_stays_and_counts_for_nothing(tiers: Tiers) -> None:
    lease, ticket = following(tiers)
    free = tiers.cache.num_free_slots
    assert lease.reserve(3, now=tiers.now)
    handed_out = lease.slots
    before = handed_out.copy()
    tiers.transfer.fail(ticket, torn=True)
    tiers.tick()
    assert (lease.num_tokens, lease.loading) == (0, False)
    assert np.array_equal(handed_out, before)
    assert lease.num_slots == len(before) - 16 + (-3 % tiers.page_size)
    assert tiers.cache.num_free_slots == free + 16 - lease.num_slots
    tiers.finish(lease, MORE)
    lease.release()
    tiers.settle()


def test_when_the_load_stalls_its_slots_stay_with_the_copy(tiers: Tiers) -> None:
    lease, ticket = following(tiers)
    assert lease.reserve(3, now=tiers.now)
    tiers.tick(100.0)
    assert (lease.num_tokens, lease.loading) == (0, False)
    used = set(lease._slot_ids[: lease.num_slots].tolist())
    assert used.isdisjoint(ticket.copy.device_slots.tolist())
    lease.release()
    tiers.transfer.finish(ticket)
    tiers.tick()
    tiers.settle()


def test_a_follower_that_is_released_leaves_the_load_its_slots(tiers: Tiers) -> None:
    lease, ticket = following(tiers)
    assert lease.reserve(3, now=tiers.now)
    lease.release()
    tiers.cache.check()
    assert tiers.cache.num_free_slots == 16
    tiers.transfer.finish(ticket)
    tiers.tick()
    assert tiers.cache.num_free_slots == 32
    tiers.settle()
