"""Copies to the host: what they bring, and what may happen to a node while its copy is under way."""

import pytest

from hicache.host import MirrorRules
from tests.unit.hicache.support import key, namespace
from tests.unit.hicache.tiers import Tiers

LONG = list(range(100, 116))


def flying(tiers: Tiers, *, locked: bool = False) -> None:
    """A prefix of 16 tokens whose mirror is under way."""
    lease = tiers.start(key(LONG))
    if not locked:
        lease.release()
    tiers.cache.flush(now=tiers.now)
    assert tiers.stats.flying_tokens == 16
    assert len(tiers.copies) == 1


def test_what_was_mirrored_and_evicted_comes_back_as_it_was() -> None:
    tiers = Tiers()
    tiers.to_host(key(LONG))
    assert tiers.cache.num_cached_slots == 0
    lease = tiers.start(key([*LONG, 1]))
    assert (lease.hit.device, lease.hit.host) == (0, 16)
    tiers.assert_reads(lease, key([*LONG, 1]))


def test_after_its_demotion_a_prefix_lies_on_the_host_alone() -> None:
    tiers = Tiers()
    tiers.to_host(key(LONG))
    holdings = tiers.cache.holdings(namespace())
    assert (holdings.device, holdings.host) == (0, 16)


def test_device_and_host_together_hold_more_than_either() -> None:
    tiers = Tiers(num_slots=32, num_host_slots=40)
    prefixes = [key([n] * 8) for n in range(9)]
    for prefix in prefixes:
        tiers.serve(prefix)
        tiers.cache.prepare(8, now=tiers.now)
        tiers.settle()
    hits = sum(tiers.cache.peek(prefix).total for prefix in prefixes)
    prepared = 8  # on both tiers
    assert hits == 32 + 40 - prepared


def test_a_mirror_goes_on_while_its_node_is_split() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.serve(key([*LONG[:7], 1, 2]))
    tiers.settle()
    tiers.empty_device()
    assert tiers.cache.peek(key(LONG)).host == 16
    tiers.start(key([*LONG, 1])).release()


def test_a_mirror_goes_on_while_its_node_is_locked() -> None:
    tiers = Tiers()
    flying(tiers)
    lease = tiers.start(key([*LONG, 1]))
    tiers.settle()
    assert tiers.node_of(key(LONG)).mirrored
    tiers.assert_reads(lease, key([*LONG, 1]))


def test_a_flying_node_that_is_evicted_is_lost_and_its_host_slots_wait_for_the_copy() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.empty_device()
    assert tiers.cache.peek(key(LONG)).total == 0
    assert tiers.stats.host_free_slots == 48
    tiers.transfer.finish_all()
    tiers.tick()
    assert tiers.stats.host_free_slots == 64
    assert tiers.cache.holdings(namespace()).host == 0


def test_a_flying_node_that_is_trimmed_loses_its_copy_and_keeps_its_front() -> None:
    tiers = Tiers()
    flying(tiers)
    lease = tiers.cache.acquire(key([1], "other"), now=tiers.now)
    assert lease.reserve(20, now=tiers.now)
    assert tiers.cache.peek(key(LONG)).device == 12
    tiers.settle()
    assert tiers.stats.host_free_slots == 64
    lease.release()
    tiers.serve(key([*LONG[:12], 5]))


def test_a_flying_node_that_its_conversation_extends_keeps_its_copy() -> None:
    tiers = Tiers()
    lease = tiers.start(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.finish(lease, key([*LONG, 1, 2, 3]))
    tiers.settle()
    assert tiers.node_of(key(LONG)).mirrored
    lease.release()
    tiers.mirror_everything()
    tiers.empty_device()
    assert tiers.cache.peek(key([*LONG, 1, 2, 3])).host == 19


def test_the_parts_of_a_split_node_merge_when_their_mirror_has_ended() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.acquire(key(LONG[:9])).release()  # splits behind the eighth token
    assert tiers.cache.stats().nodes == 2
    tiers.settle()
    tiers.empty_device()
    assert tiers.cache.stats().nodes == 1
    tiers.start(key([*LONG, 1])).release()


@pytest.mark.parametrize("locked", [False, True])
def test_a_namespace_dropped_while_its_mirror_is_under_way_comes_to_nothing(locked: bool) -> None:
    tiers = Tiers()
    flying(tiers, locked=locked)
    tiers.cache.drop(namespace())
    tiers.tick()
    assert tiers.cache.holdings(namespace()).host == 0
    assert tiers.stats.host_free_slots == 48
    tiers.settle()
    assert tiers.stats.host_free_slots == 64


def test_a_mirror_that_fails_leaves_the_node_where_it_was() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.transfer.fail(tiers.copies[0], torn=True)
    tiers.tick()
    assert tiers.cache.peek(key(LONG)).device == 16
    assert (tiers.stats.mirror_failures, tiers.stats.host_free_slots) == (1, 64)


def test_after_a_failure_no_mirror_is_started_for_a_while() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.transfer.fail(tiers.copies[0])
    tiers.tick()
    tiers.cache.prepare(32, now=tiers.now)
    assert not tiers.copies
    tiers.tick(1.5)
    tiers.cache.prepare(32, now=tiers.now)
    assert len(tiers.copies) == 1


def test_host_slots_of_a_stalled_mirror_are_free_when_it_ends() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.transfer.begin(tiers.copies[0])
    tiers.tick(11.0)
    assert (tiers.stats.stalls, tiers.stats.flying_tokens, tiers.stats.host_free_slots) == (1, 0, 48)
    assert tiers.cache.peek(key(LONG)).device == 16
    tiers.transfer.finish_all()
    tiers.tick()
    assert tiers.stats.host_free_slots == 64


def test_a_mirror_that_waits_behind_others_in_a_queue_that_moves_on_is_not_stalled() -> None:
    tiers = Tiers()
    prefixes = [key([n] * 8) for n in range(3)]
    for prefix in prefixes:
        tiers.serve(prefix)
        tiers.cache.flush(now=tiers.now)
    queued = tiers.copies
    assert len(queued) == 3
    for copy in queued[:2]:
        tiers.tick(8.0)
        tiers.transfer.finish(copy)
        tiers.tick()
    tiers.tick(8.0)
    assert tiers.stats.stalls == 0
    tiers.tick(3.0)
    assert tiers.stats.stalls == 1


def test_an_allocation_does_not_wait_for_a_mirror_that_never_ends() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.serve(key([n + 500 for n in range(32)]))
    assert len(tiers.copies) == 1
    assert tiers.stats.lost_tokens == 16


def test_a_mirror_is_noticed_by_ticks_alone() -> None:
    tiers = Tiers()
    flying(tiers)
    tiers.transfer.finish_all()
    assert tiers.cache.pending == 1
    tiers.tick()
    assert tiers.stats.mirrored_tokens == 16
    assert tiers.stats.flying_tokens == 0


def test_no_more_tokens_fly_than_allowed() -> None:
    tiers = Tiers(
        64, 64, rules=MirrorRules(low_watermark=0, high_watermark=0, max_flying_tokens=20, max_copy_tokens=10)
    )
    tiers.serve(key(list(range(50))))
    tiers.cache.flush(now=tiers.now)
    assert [len(ticket.copy) for ticket in tiers.copies] == [10, 10]
    tiers.settle()
    assert tiers.stats.mirrored_tokens == 50


def test_a_node_that_is_wanted_again_and_again_is_copied_once() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    for _ in range(5):
        tiers.cache._flights.want(tiers.node_of(key(LONG)))
    tiers.settle()
    assert tiers.stats.mirrored_tokens == 16


def test_host_content_is_evicted_where_there_is_no_room_for_a_mirror() -> None:
    tiers = Tiers(32, 16)
    tiers.to_host(key(LONG))
    other = [n + 50 for n in LONG]
    tiers.to_host(key(other))
    assert tiers.cache.peek(key(LONG)).total == 0
    assert tiers.cache.peek(key(other)).host == 16


def test_copies_that_nobody_needs_yet_leave_the_host_first() -> None:
    tiers = Tiers(64, 32)
    tiers.to_host(key(LONG))
    used = tiers.start(key([n + 50 for n in LONG]))
    tiers.mirror_everything()
    tiers.serve(key([n + 90 for n in LONG]))
    tiers.cache.prepare(64, now=tiers.now)
    tiers.settle()
    assert tiers.cache.peek(key(LONG)).host == 16, "what is nowhere else goes after what the device has"
    assert not tiers.node_of(key([n + 50 for n in LONG])).host_value
    used.release()


def test_what_is_longer_than_the_host_has_its_beginning_there() -> None:
    tiers = Tiers(256, 32)
    tiers.to_host(key(LONG))
    long = key(list(range(1000, 1200)))
    tiers.serve(long)
    tiers.mirror_everything()
    assert tiers.stats.host_free_slots == 0
    tiers.empty_device()
    assert tiers.cache.peek(long).host == 32
