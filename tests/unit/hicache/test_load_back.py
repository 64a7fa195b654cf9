"""Copies back to the device: what they bring, who waits for them, and what may happen meanwhile."""

import pytest
import torch

from hicache.copies.copier import PoolCopier
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import InstantTransfer
from hicache.errors import LeaseError
from hicache.keys import PrefixKey, Segment
from hicache.tiered import HostTier, TieredCache
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from tests.unit.hicache.support import key, namespace, start
from tests.unit.hicache.tiers import Tiers

torch.set_num_threads(1)

LONG = list(range(100, 116))
MORE = key([*LONG, 1])


@pytest.fixture
def tiers() -> Tiers:
    """16 tokens on the host, the device is empty."""
    tiers = Tiers()
    tiers.to_host(key(LONG))
    return tiers


def test_a_lease_is_loading_until_its_copy_has_ended(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    assert (lease.loading, lease.num_tokens) == (True, 0)
    tiers.transfer.finish_all()
    tiers.tick()
    assert (lease.loading, lease.num_tokens, lease.hit.host) == (False, 16, 16)
    tiers.finish(lease, MORE)


def test_nothing_is_computed_while_a_lease_is_loading(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    with pytest.raises(LeaseError, match="loading"):
        lease.reserve(1, now=tiers.now)
    with pytest.raises(LeaseError, match="loading"):
        lease.commit(MORE, now=tiers.now)


def test_what_is_loading_for_somebody_is_said_to_be(tiers: Tiers) -> None:
    assert not tiers.cache.is_loading(MORE)
    lease = tiers.load(MORE)
    assert tiers.cache.is_loading(MORE)
    assert not tiers.cache.is_loading(key([7, 8]))
    tiers.transfer.finish_all()
    tiers.tick()
    assert not tiers.cache.is_loading(MORE)
    lease.release()


def test_two_leases_that_load_the_same_prefix_both_get_it() -> None:
    tiers = Tiers(64, 64)
    tiers.to_host(key(LONG))
    first, second = tiers.load(MORE), tiers.load(key([*LONG, 2]))
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.finish(first, MORE)
    tiers.finish(second, key([*LONG, 2]))
    first.release()
    second.release()
    tiers.cache.check()
    assert tiers.cache.num_cached_slots == 18


def test_a_lease_that_is_released_while_it_loads_leaves_its_slots_to_the_copy(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    tiers.transfer.begin(tiers.copies[0])
    lease.release()
    tiers.tick()
    assert tiers.cache.num_free_slots == 16
    tiers.transfer.finish_all()
    tiers.tick()
    assert tiers.cache.num_free_slots == 32
    assert tiers.cache.peek(MORE).host == 16


def test_a_load_that_was_not_begun_is_cancelled_with_its_lease(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    lease.release()
    tiers.transfer.begin(tiers.copies[0])
    tiers.tick()
    assert tiers.cache.num_free_slots == 32
    assert tiers.stats.load_failures == 0


def test_after_a_load_that_failed_the_prefix_is_computed(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    tiers.transfer.fail(tiers.copies[0], torn=True)
    tiers.tick()
    assert not lease.loading
    assert (lease.hit.total, lease.num_tokens, tiers.stats.load_failures) == (0, 0, 1)
    tiers.finish(lease, MORE)
    lease.release()
    assert tiers.cache.peek(MORE).device == 17


def test_slots_of_a_stalled_load_are_nobody_s_until_it_ends(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    tiers.transfer.begin(tiers.copies[0])
    tiers.tick(11.0)
    assert not lease.loading
    assert tiers.cache.num_free_slots == 16
    lease.release()
    taken = tiers.cache.acquire(key([1], "other"), now=tiers.now)
    assert not taken.reserve(17, now=tiers.now)
    assert taken.reserve(16, now=tiers.now)
    tiers.memories.device[taken.slots] = 7
    tiers.transfer.finish_all()
    assert bool((tiers.memories.device[taken.slots] == 7).all())
    tiers.tick()
    assert tiers.cache.num_free_slots == 16
    taken.release()


def test_copies_that_never_end_take_the_slots_of_one_load_and_no_more(tiers: Tiers) -> None:
    for n in range(5):
        with tiers.load(key([*LONG, n])) as lease:
            for ticket in tiers.copies:
                tiers.transfer.begin(ticket)
            tiers.tick(11.0)
            assert not lease.loading
    assert tiers.stats.stalls == 1
    assert tiers.cache.num_available_slots() == 16
    tiers.transfer.finish_all()
    tiers.tick()
    with tiers.load(MORE) as lease:
        assert lease.loading, "copies end again"
    tiers.settle()


def test_a_namespace_that_is_dropped_while_it_loads_gives_nothing_to_anybody(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    tiers.cache.drop(namespace())
    tiers.settle()
    assert not lease.loading
    tiers.finish(lease, MORE)
    lease.release()
    assert tiers.cache.peek(MORE).total == 0
    assert tiers.cache.num_free_slots == 32
    assert tiers.stats.host_free_slots == 64


def test_a_node_may_be_split_while_it_is_loaded(tiers: Tiers) -> None:
    lease = tiers.load(MORE)
    other = key([*LONG[:6], 1, 2])
    waiting = tiers.load(other)
    tiers.settle()
    tiers.finish(lease, MORE)
    tiers.finish(waiting, other)


def test_a_node_may_be_computed_again_while_it_is_loaded() -> None:
    tiers = Tiers(64, 64)
    tiers.to_host(key(LONG))
    lease = tiers.load(MORE)
    with tiers.acquire(key([*LONG, 2])) as other:
        tiers.finish(other, key([*LONG, 2]))
    tiers.settle()
    tiers.finish(lease, MORE)
    lease.release()
    tiers.cache.check()


def test_host_slots_that_a_load_reads_are_not_evicted() -> None:
    tiers = Tiers(32, 16)
    tiers.to_host(key(LONG))
    lease = tiers.load(MORE)
    with tiers.start(key(list(range(10)), "other")):
        tiers.cache.flush(now=tiers.now)
    assert len(tiers.copies) == 1, "there is no room for the mirror"
    tiers.settle()
    tiers.finish(lease, MORE)


def test_what_a_lease_may_load_back_stays_on_the_host() -> None:
    tiers = Tiers(32, 16)
    tiers.to_host(key(LONG))
    lease = tiers.acquire(MORE)
    tiers.serve(key(list(range(10)), "other"))
    tiers.mirror_everything()
    assert lease.load_back(now=tiers.now)
    tiers.settle()
    tiers.finish(lease, MORE)


def test_who_computes_lets_go_of_the_host() -> None:
    tiers = Tiers(32, 16)
    tiers.to_host(key(LONG))
    lease = tiers.acquire(MORE)
    tiers.finish(lease, MORE)
    assert not lease.load_back(now=tiers.now)
    assert all(node.host_ref_counter == 0 for node in (tiers.node_of(key(LONG)), tiers.node_of(MORE)))


def test_as_much_is_loaded_as_there_are_slots(tiers: Tiers) -> None:
    with tiers.cache.acquire(key([1], "other"), now=tiers.now) as other:
        assert other.reserve(22, now=tiers.now)
        lease = tiers.load(MORE)
        tiers.settle()
        assert lease.hit.host == lease.num_tokens == 10
        tiers.assert_reads(lease, MORE)
    lease.release()
    assert tiers.cache.peek(MORE).total == 16


def test_without_a_slot_nothing_is_loaded(tiers: Tiers) -> None:
    with tiers.take_all_slots():
        lease = tiers.load(MORE)
        assert not lease.loading
        assert lease.hit.total == 0


def test_a_load_continues_behind_what_the_device_has(tiers: Tiers) -> None:
    front = tiers.start(key(LONG[:8]))
    lease = tiers.load(MORE)
    tiers.settle()
    assert (lease.hit.device, lease.hit.host) == (8, 8)
    tiers.finish(lease, MORE)
    front.release()


def test_a_load_goes_through_a_public_prefix_into_the_tenant_s_own() -> None:
    tiers = Tiers()
    public, own = Segment(namespace("public"), LONG[:8]), Segment(namespace(), LONG[8:])
    both = PrefixKey((public, own))
    tiers.to_host(both)
    lease = tiers.load(both.extend([1]))
    tiers.settle()
    assert lease.hit.host == 16
    tiers.finish(lease, both.extend([1]))


def test_short_hits_are_computed_instead() -> None:
    tiers = Tiers(cost=LoadCostModel(LoadCostConfig(load_back_threshold=17)))
    tiers.to_host(key(LONG))
    lease = tiers.load(MORE)
    assert not lease.loading
    assert tiers.stats.declined_loads == 1
    tiers.finish(lease, MORE)


def test_what_is_computed_faster_than_loaded_is_not_loaded() -> None:
    slow = LoadCostModel(LoadCostConfig(load_back_threshold=1))
    slow.observe_load(100, 10.0, now=1.0)
    slow.observe_prefill(100, 0.1, now=1.0)
    tiers = Tiers(cost=slow)
    tiers.to_host(key(LONG))
    assert not tiers.load(MORE).loading
    assert tiers.stats.declined_loads == 1


def test_speeds_are_learnt_from_what_is_loaded_and_computed() -> None:
    cost = LoadCostModel(LoadCostConfig(load_back_threshold=1))
    tiers = Tiers(cost=cost)
    tiers.to_host(key(LONG))
    before = cost.load_tokens_per_s
    tiers.start(MORE).release()
    assert before is None
    assert cost.load_tokens_per_s is not None
    tiers.cache.observe_prefill(100, 0.5, now=tiers.now)
    assert cost.prefill_tokens_per_s == pytest.approx(200)


def test_real_pools_bring_back_the_same_bytes() -> None:
    layers = [LayerShape(2, 8, 8), LayerShape(1, 4, 16)]
    device_pool = DevicePool(layers, 16, torch.bfloat16, "cpu")
    host_pool = HostPool(layers, 32, torch.bfloat16, pin="never")
    cost = LoadCostModel(LoadCostConfig(load_back_threshold=1))
    cache = TieredCache(16, HostTier(32, InstantTransfer(PoolCopier(device_pool, host_pool)), cost=cost))
    wanted = key(list(range(9)))
    torch.manual_seed(0)
    with start(cache, wanted, now=1.0) as lease:
        for group in device_pool.planes.groups:
            group.normal_()
        before = device_pool.read_page(lease.slots)
    cache.prepare(16, now=2.0)
    with cache.acquire(key([1], "other"), now=3.0) as other:
        assert other.reserve(16, now=3.0)
        for group in device_pool.planes.groups:
            group.zero_()
    with cache.acquire(wanted, now=4.0) as loaded:
        loaded.load_back(now=4.0)
        assert loaded.hit.host == 9
        assert device_pool.read_page(loaded.slots) == before
