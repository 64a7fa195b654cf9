"""Who reads the event log knows what each tier holds, after a gap too."""

from collections.abc import Iterable

import pytest

from hicache.cache import PrefixCache
from hicache.copies.fake_transfer import InstantTransfer
from hicache.events import CacheDigest, EventKind, EventLog, Holding, TierDigest
from hicache.keys import page_hashes
from hicache.radix.naming import PageNames
from hicache.tiered import HostTier, StorageTier, TieredCache
from tests.property.tiers import Reader, walked
from tests.unit.hicache.support import key, namespace
from tests.unit.hicache.tiers import SEED, Tiers

LONG = list(range(100, 116))  # four pages of names
NAMES = tuple(page_hashes(key(LONG), 4, SEED))


def digest_of(names: Iterable[bytes]) -> TierDigest:
    numbers = [int.from_bytes(name, "little") for name in names]
    return TierDigest(len(numbers), sum(numbers) % 2**128)


def told(tiers: Tiers, since: int = 0) -> list[tuple[EventKind, str, tuple[bytes, ...]]]:
    events = tiers.log.since(since)
    assert events is not None
    return [(event.kind, event.tier, event.names) for event in events]


def test_pages_are_stored_as_they_fill() -> None:
    tiers = Tiers()
    lease = tiers.start(key(LONG[:6]))
    tiers.finish(lease, key(LONG[:7]))
    tiers.finish(lease, key(LONG[:12]))
    assert told(tiers) == [
        (EventKind.STORED, "device", NAMES[:1]),
        (EventKind.STORED, "device", NAMES[1:3]),
    ]


def test_a_copy_is_told_of_when_it_is_done() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    seq = tiers.log.seq
    assert told(tiers, seq) == []
    tiers.transfer.finish_all()
    tiers.tick()
    assert told(tiers, seq) == [(EventKind.STORED, "host", NAMES)]


def test_pages_are_told_of_when_storage_has_them_and_are_in_no_digest() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    before = tiers.log.digest()
    tiers.settle()
    assert told(tiers, before.seq) == [(EventKind.STORED, "storage", NAMES)]
    after = tiers.log.digest()
    assert (after.device, after.host) == (before.device, before.host)
    assert after.device.num_pages == after.host.num_pages == len(NAMES)


def test_pages_that_storage_did_not_take_are_not_told_of() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.finish_all()
    tiers.tick()
    seq = tiers.log.seq
    tiers.io.fail("the disk is full")
    tiers.settle()
    assert told(tiers, seq) == []


def test_a_digest_is_the_sum_of_the_names_that_are_there() -> None:
    tiers = Tiers()
    assert tiers.log.digest() == CacheDigest()
    tiers.to_host(key(LONG))
    tiers.serve(key(LONG[:8], "other"))
    names = page_hashes(key(LONG[:8], "other"), 4, SEED)
    assert tiers.log.digest() == CacheDigest(tiers.log.seq, digest_of(names), digest_of(NAMES))


def test_a_page_that_is_there_twice_counts_twice() -> None:
    tiers = Tiers(64)
    tiers.serve(key(LONG))
    tiers.cache.drop(namespace())
    tiers.serve(key(LONG))
    assert tiers.log.digest().device == digest_of([*NAMES, *NAMES])
    tiers.settle()
    assert tiers.log.digest().device == digest_of(NAMES)


def test_a_cache_on_the_device_alone_has_a_digest_and_a_snapshot() -> None:
    log = EventLog(PageNames(4, SEED))
    cache = PrefixCache(64, events=log)
    with cache.acquire(key(LONG), now=1.0) as lease:
        assert lease.reserve(16, now=1.0)
        lease.commit(key(LONG), now=1.0)
    assert cache.snapshot().holdings == (Holding("device", namespace(), b"".join(NAMES)),)
    assert cache.snapshot().digest() == log.digest() == CacheDigest(1, digest_of(NAMES))


def test_what_leaves_the_device_for_the_host_has_moved() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    seq = tiers.log.seq
    tiers.empty_device()
    assert told(tiers, seq) == [(EventKind.MOVED, "host", NAMES)]


def test_what_is_trimmed_is_removed_from_its_end() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    seq = tiers.log.seq
    with tiers.cache.acquire(key([1], "other"), now=tiers.now) as other:
        assert other.reserve(21, now=tiers.now)  # five tokens go: two pages are not whole any more
    assert told(tiers, seq) == [(EventKind.REMOVED, "device", NAMES[2:])]


def test_what_a_dropped_namespace_held_is_removed_bit_by_bit() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    seq = tiers.log.seq
    tiers.cache.drop(namespace())
    tiers.settle()
    assert told(tiers, seq) == [(EventKind.REMOVED, "device", NAMES), (EventKind.REMOVED, "host", NAMES)]


def test_pages_stored_again_before_the_dropped_ones_are_gone_are_there() -> None:
    tiers = Tiers(64)
    reader = Reader(tiers.log, tiers.cache)
    tiers.serve(key(LONG))
    tiers.cache.drop(namespace())
    tiers.serve(key(LONG))
    reader.resync()
    tiers.settle()
    reader.follow()
    assert reader.held == {("device", namespace(), name): 1 for name in NAMES}


def test_a_reader_that_missed_events_is_told_so_and_starts_from_a_snapshot() -> None:
    names = PageNames(4, SEED)
    log = EventLog(names, capacity=2)
    cache = TieredCache(64, HostTier(64, InstantTransfer()), events=log)
    reader = Reader(log, cache)
    for first in range(5):
        with cache.acquire(key([first, *LONG]), now=1.0) as lease:
            assert lease.reserve(17, now=1.0)
            lease.commit(key([first, *LONG[:3]]), now=1.0)
            lease.commit(key([first, *LONG]), now=1.0)
    assert log.since(0) is None
    reader.follow()
    assert reader.resyncs == 1
    assert reader.held == walked(cache, names)
    assert len(reader.held) == 15, "three of the five are there, and three pages of a fourth"


def test_a_log_that_began_anew_has_not_what_a_reader_asks_for() -> None:
    log = EventLog(PageNames(4, SEED))
    assert log.since(0) == []
    assert log.since(1) is None


def test_events_count_without_gaps_and_are_told_as_they_happen() -> None:
    heard: list[int] = []
    names = PageNames(4, SEED)
    log = EventLog(names, on_event=lambda event: heard.append(event.seq))
    cache = PrefixCache(64, events=log)
    for first in range(9):
        with cache.acquire(key([first, *LONG]), now=1.0) as lease:
            assert lease.reserve(17, now=1.0)
            lease.commit(key([first, *LONG]), now=1.0)
    assert heard == list(range(1, log.seq + 1))


def test_storage_and_events_call_pages_by_one_name() -> None:
    tiers = Tiers()
    stranger = EventLog(PageNames(4, SEED))
    storage = StorageTier(tiers.io, tiers.memories, tiers.names)
    with pytest.raises(ValueError, match="share"):
        TieredCache(32, HostTier(64, tiers.transfer), storage=storage, events=stranger)


def test_a_page_of_names_consists_of_whole_pages_of_the_tree() -> None:
    with pytest.raises(ValueError, match="multiple"):
        TieredCache(32, HostTier(64, InstantTransfer()), page_size=8, events=EventLog(PageNames(12, SEED)))


def test_a_cache_without_events_has_no_snapshot() -> None:
    with pytest.raises(ValueError, match="no events"):
        TieredCache(32, HostTier(64, InstantTransfer())).snapshot()
