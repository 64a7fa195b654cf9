"""What goes from the host to storage, when, and what happens to it on the way."""

from hicache.backing import BackingRules
from hicache.host import MirrorRules
from hicache.keys import PrefixKey, Segment, page_hashes
from hicache.storage.fake_io import InstantIo
from hicache.storage.memory import MemoryStore
from tests.property.tiers import WatchedStore
from tests.unit.hicache.support import key, namespace
from tests.unit.hicache.tiers import SEED, Tiers

LONG = list(range(100, 116))  # four pages of names
MORE = key([*LONG, 1])


def pages(tiers: Tiers) -> set[bytes]:
    """What the store has, of any group."""
    return {name.page for name in tiers.store._pages}


def test_pages_are_saved_under_their_names_when_the_host_has_them() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    assert pages(tiers) == set(page_hashes(key(LONG), 4, SEED))
    assert tiers.stats.saved_pages == 4


def test_a_page_that_lies_in_several_nodes_is_saved_when_all_of_them_are_on_the_host() -> None:
    tiers = Tiers()
    tiers.serve(key([*LONG[:6], 1, 2]), key([*LONG[:6], 3, 4]))
    tiers.mirror_everything()
    names = {*page_hashes(key([*LONG[:6], 1, 2]), 4, SEED), *page_hashes(key([*LONG[:6], 3, 4]), 4, SEED)}
    assert len(names) == 3
    assert pages(tiers) == names


def test_what_lies_above_a_saved_page_is_saved_too() -> None:
    tiers = Tiers()
    tiers.serve(key([*LONG, 1]), key([*LONG, 2, 3, 4, 5]))
    held = tiers.start(key([*LONG, 2]))
    tiers.cache._flights.want(tiers.node_of(key([*LONG, 2, 3, 4, 5])))
    tiers.settle()
    assert set(page_hashes(key([*LONG, 2, 3, 4, 5]), 4, SEED)) <= pages(tiers)
    held.release()


def test_a_page_is_saved_when_the_last_part_of_it_comes_to_the_host() -> None:
    tiers = Tiers()
    tiers.serve(key([*LONG[:6], 1, 2]), key([*LONG[:6], 3, 4]))
    upper, lower = tiers.node_of(key(LONG[:6])), tiers.node_of(key([*LONG[:6], 1, 2]))
    tiers.cache._flights.want(lower)
    tiers.tick()
    tiers.transfer.finish_all()
    tiers.tick()
    assert lower.mirrored
    assert not tiers.io.tasks
    tiers.serve(key([*LONG[:6], 1]))  # splits what waits
    tiers.settle()
    assert upper.mirrored
    assert pages(tiers) == set(page_hashes(key([*LONG[:6], 1, 2]), 4, SEED))


def test_pages_of_a_node_that_was_split_grown_trimmed_and_merged_have_their_names() -> None:
    tiers = Tiers()
    lease = tiers.start(key(LONG[:6]))
    tiers.cache.snapshot()  # asks for names
    tiers.finish(lease, key(LONG[:11]))  # grows in place
    lease.release()
    tiers.acquire(key(LONG[:4])).release()  # splits, and merges
    with tiers.cache.acquire(key([1], "other"), now=tiers.now) as other:
        assert other.reserve(25, now=tiers.now)  # trims to 7
    other_end = key([*LONG[:7], 5, 5, 5, 5, 5, 5, 5, 5, 5])
    tiers.serve(other_end)
    tiers.mirror_everything()
    assert pages(tiers) == set(page_hashes(other_end, 4, SEED))


def test_saved_pages_are_not_saved_again() -> None:
    store = WatchedStore(MemoryStore(1 << 20))
    tiers = Tiers(32, 32, io=InstantIo(store))
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    tiers.empty_device()
    tiers.serve(MORE)
    tiers.mirror_everything()
    assert tiers.stats.saved_pages == 4


def test_a_dropped_namespace_leaves_the_store_and_may_come_again() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    tiers.cache.drop(namespace())
    tiers.settle()
    assert pages(tiers) == set()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    assert pages(tiers) == set(page_hashes(key(LONG), 4, SEED))


def test_a_save_under_way_is_stopped_when_its_namespace_is_dropped() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.io.advance()
    tiers.cache.drop(namespace())
    tiers.tick()
    assert tiers.stats.host_free_slots == 48, "a page may still be read there"
    tiers.io.finish()
    assert len(pages(tiers)) == 1, "the one that had been read before"
    tiers.settle()
    assert pages(tiers) == set()
    assert tiers.stats.host_free_slots == 64


def test_a_copy_that_ends_after_the_drop_of_its_namespace_is_not_saved() -> None:
    tiers = Tiers(1300, 1300, rules=MirrorRules(max_copy_tokens=2000))
    tiers.serve(*(key([5] * 4 + [n] * 4) for n in range(300)))  # more than a tick frees
    tiers.cache.flush(now=tiers.now)
    tiers.cache.drop(namespace())
    tiers.transfer.finish_all()
    tiers.settle()
    assert pages(tiers) == set()


def test_a_node_that_is_being_saved_stays_on_the_host() -> None:
    tiers = Tiers(32, 16)
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.empty_device()
    tiers.serve(key(list(range(16)), "other"))
    tiers.cache.prepare(32, now=tiers.now)
    assert not tiers.copies, "there is no room for the mirror"
    tiers.settle()
    assert pages(tiers) >= set(page_hashes(key(LONG), 4, SEED))


def test_a_node_that_was_split_while_it_was_mirrored_is_one_again() -> None:
    tiers = Tiers()
    short = key(LONG[:3])  # no page, so that no save puts it together
    tiers.serve(short)
    tiers.cache.flush(now=tiers.now)
    tiers.acquire(short).release()
    assert tiers.node_of(short).num_tokens == 1, "split while its copy is under way"
    tiers.settle()
    assert tiers.node_of(short).num_tokens == 3


def test_a_node_may_be_split_while_it_is_saved() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.io.advance()
    tiers.serve(key([*LONG[:7], 1]))
    tiers.settle()
    assert pages(tiers) == set(page_hashes(key(LONG), 4, SEED))
    tiers.empty_device()
    tiers.start(MORE).release()


def test_a_save_that_fails_is_tried_again_with_the_next_copy() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.io.fail("the disk is full")
    tiers.tick()
    assert tiers.stats.failed_saves == 1
    tiers.cache.drop(namespace("nobody"))
    tiers.serve(key([*LONG, 1, 2, 3, 4]))
    tiers.mirror_everything()
    assert page_hashes(key([*LONG, 1, 2, 3, 4]), 4, SEED)[-1] in pages(tiers)


def test_pages_that_the_store_has_lost_are_saved_again() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    tiers.empty_device()
    lost = page_hashes(key(LONG), 4, SEED)[2]
    tiers.store._drop(next(name for name in tiers.store._pages if name.page == lost))
    # The host loses it, a fetch misses it, and then it is computed again.
    tiers.cache._removal.evict_on_host(16 * 4, tiers.cache._shares.common)
    tiers.fetch(MORE)
    tiers.settle()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    assert lost in pages(tiers)


def test_pages_are_skipped_while_too_many_wait() -> None:
    tiers = Tiers(backing=BackingRules(min_fetch_tokens=1, max_save_tokens=16))
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    tiers.serve(key([n + 50 for n in LONG]))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    assert tiers.stats.skipped_saves == 4
    tiers.settle()
    assert tiers.stats.saved_pages == 4


def test_a_page_that_straddles_a_barrier_belongs_to_the_tenant() -> None:
    tiers = Tiers()
    public = Segment(namespace("public"), LONG[:6])
    tiers.serve(PrefixKey((public, Segment(namespace("a"), [1, 2, 3]))))
    tiers.serve(PrefixKey((public, Segment(namespace("b"), [1, 2, 3]))))
    tiers.mirror_everything()
    assert len(pages(tiers)) == 3
    tiers.cache.drop(namespace("a"))
    tiers.settle()
    assert len(pages(tiers)) == 2
    tiers.cache.drop(namespace("public"))
    tiers.settle()
    assert len(pages(tiers)) == 1


def test_parts_of_a_page_that_a_small_host_cannot_hold_together_do_not_drive_each_other_out_for_ever() -> None:
    tiers = Tiers(32, 4)
    held = tiers.start(key([1, 2, 3]))
    tiers.finish(held, key([1, 2, 3, 4, 5, 6]))
    other = tiers.start(key([1, 2, 3, 9]))  # splits: no host slot is left beside either part
    tiers.mirror_everything()
    tiers.mirror_everything()
    assert tiers.cache.pending == 0
    held.release()
    other.release()
