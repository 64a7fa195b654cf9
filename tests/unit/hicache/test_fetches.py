"""What storage brings to the host for a request that waits: all of it, a part, nothing, or too late."""

from pathlib import Path

import pytest

from hicache.backing import BackingRules
from hicache.keys import page_hashes
from hicache.pages import page_names
from hicache.storage.fake_io import InstantIo
from hicache.storage.file_store import FileStore
from hicache.storage.memory import MemoryStore
from tests.property.tiers import WatchedStore
from tests.unit.hicache.support import key, namespace
from tests.unit.hicache.tiers import SEED, Tiers

LONG = list(range(100, 116))  # four pages of names
MORE = key([*LONG, 1])


@pytest.fixture
def store() -> MemoryStore:
    """Has the four pages."""
    store = MemoryStore(1 << 20)
    writer = Tiers(store=store)
    writer.serve(key(LONG))
    writer.mirror_everything()
    assert store.stats().num_pages == 4
    return store


def test_what_one_cache_saved_another_one_loads_as_it_was(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    fetch = tiers.fetch(MORE)
    assert fetch is not None
    tiers.settle()
    assert not fetch.pending
    lease = tiers.load(MORE, fetch=fetch)
    tiers.settle()
    assert (lease.hit.device, lease.hit.host, lease.hit.storage) == (0, 0, 16)
    tiers.finish(lease, MORE)


def test_only_what_is_missing_on_the_host_is_fetched(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.serve(key(LONG[:6]))
    fetch = tiers.fetch(MORE)
    assert fetch is not None
    assert len(fetch.names) == 3
    tiers.settle()
    lease = tiers.load(MORE, fetch=fetch)
    tiers.settle()
    assert (lease.hit.device, lease.hit.host, lease.hit.storage) == (6, 0, 10)
    tiers.finish(lease, MORE)


def test_nothing_is_asked_for_that_is_there(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.serve(key(LONG))
    assert tiers.fetch(MORE) is None


def test_too_little_is_not_worth_asking(store: MemoryStore) -> None:
    tiers = Tiers(store=store, backing=BackingRules(min_fetch_tokens=17))
    assert tiers.fetch(MORE) is None


def test_fetched_tokens_that_the_host_had_before_count_for_the_host(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    fetch = tiers.fetch(MORE)
    tiers.to_host(key(LONG[:8]))
    lease = tiers.load(MORE, fetch=fetch)
    tiers.settle()
    assert (lease.hit.host, lease.hit.storage) == (8, 8)


def test_what_was_sought_is_counted_whether_it_was_there_or_not(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.fetch(key([9] * 9))
    tiers.settle()
    assert (tiers.stats.sought_tokens, tiers.stats.fetched_tokens) == (8, 0)
    tiers.fetch(MORE)
    tiers.settle()
    assert (tiers.stats.sought_tokens, tiers.stats.fetched_tokens) == (8 + 16, 16)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_thousand_aborted_fetches_leave_the_budget_as_it_was(store: MemoryStore, steps: int) -> None:
    tiers = Tiers(store=store, backing=BackingRules(min_fetch_tokens=1, max_fetch_bytes=4 * 32))
    names = page_names(MORE, tiers.names)
    contents = [content for content in store.get(names) if content is not None]
    for _ in range(1000):
        fetch = tiers.fetch(MORE)
        assert fetch is not None, "the budget is used up"
        for _ in range(steps):
            tiers.io.advance()
            tiers.cache.tick(tiers.now)
        fetch.cancel()
        tiers.io.finish_all()
        tiers.cache.tick(tiers.now)
        tiers.cache.drop(namespace())  # or what came would be there
        tiers.io.finish_all()
        tiers.cache.tick(tiers.now)
        store.put(list(zip(names, contents, strict=True)))
    tiers.cache.check()
    assert tiers.stats.fetch_reserved_bytes == 0
    assert tiers.cache.pending == 0
    assert tiers.stats.host_free_slots == 64


def test_fetches_together_ask_for_no_more_bytes_than_allowed(store: MemoryStore) -> None:
    tiers = Tiers(store=store, backing=BackingRules(min_fetch_tokens=1, max_fetch_bytes=6 * 32))
    first, second, third = tiers.fetch(MORE), tiers.fetch(key([*LONG, 2])), tiers.fetch(key([*LONG, 3]))
    assert first is not None
    assert second is not None
    assert (len(first.names), len(second.names), third) == (4, 2, None)
    tiers.settle()
    assert tiers.stats.fetch_reserved_bytes == 0


def test_a_fetch_that_takes_too_long_is_given_up(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    fetch = tiers.fetch(MORE)
    assert fetch is not None
    tiers.io.finish()  # it is found
    tiers.tick()
    tiers.io.advance()  # one page has come
    tiers.tick(3.0)
    assert not fetch.pending
    assert tiers.stats.late_fetches == 1
    assert tiers.stats.host_free_slots == 48, "the store may still write there"
    tiers.settle()
    assert tiers.stats.host_free_slots == 64
    assert tiers.cache.peek(MORE).total == 0


def test_a_store_that_hangs_makes_one_request_wait_and_no_other(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    first = tiers.fetch(MORE)
    assert first is not None
    tiers.tick(3.0)
    assert not first.pending
    assert tiers.fetch(MORE) is None
    assert tiers.fetch(key([*LONG, 2])) is None
    tiers.settle()
    again = tiers.fetch(MORE)
    assert again is not None, "it has answered at last"
    tiers.settle()
    assert again.fetched_tokens == 16


def test_a_page_that_is_lost_makes_a_shorter_hit() -> None:
    store = WatchedStore(MemoryStore(1 << 20))
    writer = Tiers(io=InstantIo(store))
    writer.serve(key(LONG))
    writer.mirror_everything()
    reader = Tiers(io=InstantIo(store))
    fetch = reader.fetch(MORE)
    assert fetch is not None
    store.lost.add(fetch.names[2].page)
    reader.settle()
    assert reader.cache.peek(MORE).host == 8
    lease = reader.load(MORE, fetch=fetch)
    reader.settle()
    assert lease.hit.storage == 8
    reader.finish(lease, MORE)


def test_a_dead_store_is_counted_and_nothing_else() -> None:
    store = WatchedStore(MemoryStore(1 << 20))
    store.away = True
    tiers = Tiers(io=InstantIo(store))
    fetch = tiers.fetch(MORE)
    tiers.serve(MORE)
    tiers.mirror_everything()
    assert fetch is not None
    assert not fetch.pending
    assert (tiers.stats.failed_fetches, tiers.stats.failed_saves, tiers.stats.saved_pages) == (1, 1, 0)
    assert tiers.stats.fetch_reserved_bytes == 0


def test_a_fetch_may_end_in_the_middle_of_its_load(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    fetch = tiers.fetch(MORE)
    tiers.io.finish()
    tiers.tick()
    tiers.io.advance()
    tiers.io.advance()
    tiers.io.fail("the connection broke")
    tiers.tick()
    lease = tiers.load(MORE, fetch=fetch)
    tiers.settle()
    assert lease.hit.storage == 8, "the pages that came are whole"
    tiers.finish(lease, MORE)


def test_what_a_fetch_hangs_below_is_not_evicted_for_it(store: MemoryStore) -> None:
    tiers = Tiers(32, 16, store=store)
    tiers.to_host(key(LONG[:8]))
    tiers.to_host(key(list(range(8)), "other"))  # used later than what the fetch hangs below
    fetch = tiers.fetch(MORE)
    tiers.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 8
    assert tiers.cache.peek(MORE).host == 16


def test_a_fetch_waits_until_what_was_dropped_is_gone(store: MemoryStore) -> None:
    tiers = Tiers(700, 700, store=store)
    tiers.to_host(*(key([5, n, n], "dropped") for n in range(345)))
    fetch = tiers.fetch(MORE)
    tiers.io.finish_all()
    tiers.cache.drop(namespace("dropped"))
    tiers.tick()
    assert tiers.cache.stats().nodes > 0, "some of it is not gone yet"
    tiers.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 16


def test_a_namespace_that_is_dropped_is_fetched_no_more(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    fetch = tiers.fetch(MORE)
    tiers.io.finish()
    tiers.tick()
    tiers.io.advance()
    tiers.cache.drop(namespace())
    tiers.settle()
    assert fetch is not None
    assert not fetch.pending
    assert tiers.cache.peek(MORE).total == 0
    assert tiers.stats.host_free_slots == 64
    assert store.stats().num_pages == 0


def test_what_was_dropped_is_not_fetched_before_storage_has_removed_it(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.cache.drop(namespace())
    assert tiers.cache.pending == 1
    assert tiers.fetch(MORE) is None, "reads go before removals: it would be found"
    assert tiers.fetch(key(LONG, "other")) is not None, "others go on"
    tiers.settle()
    assert store.stats().num_pages == 0
    assert tiers.fetch(MORE) is not None


def test_a_removal_that_fails_is_tried_again_and_nothing_is_fetched_before(store: MemoryStore) -> None:
    watched = WatchedStore(store)
    tiers = Tiers(io=InstantIo(watched))
    watched.away = True
    tiers.cache.drop(namespace())
    tiers.tick()
    watched.away = False
    assert tiers.fetch(MORE) is None
    assert store.stats().num_pages == 4
    tiers.tick(1.0)
    tiers.tick()
    assert store.stats().num_pages == 0
    assert tiers.fetch(MORE) is not None


def test_as_much_is_fetched_as_there_is_room_for(store: MemoryStore) -> None:
    tiers = Tiers(64, 24, store=store)
    tiers.to_host(key([5] * 11 + [6]))
    assert tiers.cache.peek(key([5] * 11 + [6])).host > 0
    fetch = tiers.fetch(MORE)
    tiers.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 12, "half of the host"
    assert tiers.cache.peek(key([5] * 11 + [6])).host > 0


def test_a_fetch_takes_the_slots_that_can_be_had(store: MemoryStore) -> None:
    tiers = Tiers(64, 24, store=store)
    other = key(list(range(50, 67)))
    tiers.to_host(other)
    with tiers.acquire(key([*other.token_ids, 1])):  # may load back what lies on the host
        fetch = tiers.fetch(MORE)
        tiers.settle()
    assert fetch is not None
    assert 0 < fetch.fetched_tokens < 16
    assert tiers.cache.peek(MORE).host == fetch.fetched_tokens


def test_a_prefix_that_left_the_host_cannot_be_continued(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.serve(key(LONG[:8]))
    fetch = tiers.fetch(MORE)
    tiers.empty_device()  # it was dirty, and is lost
    tiers.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 0
    assert tiers.stats.host_free_slots == 64


def test_two_fetches_of_the_same_pages_leave_them_there_once(store: MemoryStore) -> None:
    tiers = Tiers(store=store)
    tiers.fetch(MORE)
    tiers.fetch(key([*LONG, 2]))
    tiers.settle()
    assert tiers.stats.host_free_slots == 48
    assert tiers.cache.peek(MORE).host == 16


def test_a_corrupt_page_makes_a_shorter_hit_and_is_counted(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1 << 20)
    writer = Tiers(io=InstantIo(store))
    writer.serve(key(LONG))
    writer.mirror_everything()
    third = page_hashes(key(LONG), 4, SEED)[2].hex()
    (page,) = (path for path in tmp_path.rglob("*") if path.is_file() and third in path.name)
    content = bytearray(page.read_bytes())
    content[-1] ^= 1
    page.write_bytes(content)
    reader = Tiers(io=InstantIo(store))
    fetch = reader.fetch(MORE)
    reader.settle()
    lease = reader.load(MORE, fetch=fetch)
    reader.settle()
    assert lease.hit.storage == 8
    assert store.stats().corrupt == 1
    reader.finish(lease, MORE)
