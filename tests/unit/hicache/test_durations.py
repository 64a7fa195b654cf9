"""How long single copies took: each is told once, by what it was."""

from hicache.cache import PrefixCache
from hicache.copies.transfer import Direction
from hicache.stats import CopyDurations, Durations, Speed, TierSpeeds
from tests.unit.hicache.support import key
from tests.unit.hicache.tiers import Tiers

LONG = list(range(100, 116))  # four pages of names


def end_copies(tiers: Tiers, seconds: float) -> list[Direction]:
    """Let all copies under way end, as if each had taken so long."""
    ended = []
    for ticket in tiers.copies:
        tiers.transfer.finish(ticket)
        ticket.seconds = seconds
        ended.append(ticket.copy.direction)
    tiers.tick()
    return ended


def test_each_copy_that_ends_is_told_once() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    assert end_copies(tiers, 0.25) == [Direction.MIRROR]
    assert tiers.cache.take_durations().mirrors == (0.25,)
    assert not tiers.cache.take_durations()


def test_copies_back_to_the_device_are_told_apart() -> None:
    tiers = Tiers()
    tiers.to_host(key(LONG))
    tiers.cache.take_durations()
    lease = tiers.load(key([*LONG, 1]))
    assert end_copies(tiers, 0.5) == [Direction.LOAD]
    assert tiers.cache.take_durations() == CopyDurations(load_backs=(0.5,))
    lease.release()


def test_a_copy_that_fails_has_no_duration() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.cache.flush(now=tiers.now)
    tiers.transfer.fail(tiers.copies[0])
    tiers.tick()
    assert tiers.stats.mirror_failures == 1
    assert not tiers.cache.take_durations()


def test_batches_that_are_saved_and_what_is_looked_up_and_read_have_durations() -> None:
    tiers = Tiers()
    tiers.serve(key(LONG))
    tiers.mirror_everything()
    assert len(tiers.cache.take_durations().saves) == 1
    other = Tiers(store=tiers.store)
    assert other.fetch(key([*LONG, 1])) is not None
    other.settle()
    assert len(other.cache.take_durations().prefetches) == 2  # a look-up and a read
    assert other.fetch(key([1] * 17)) is not None
    other.settle()
    assert len(other.cache.take_durations().prefetches) == 1  # nothing was found


def test_what_a_store_refused_at_once_has_none() -> None:
    tiers = Tiers()
    assert tiers.fetch(key([*LONG, 1])) is not None
    tiers.io.fail("away")
    tiers.tick()
    assert tiers.stats.failed_fetches == 1
    assert not tiers.cache.take_durations()


def test_a_cache_without_tiers_has_none() -> None:
    assert not PrefixCache(8).take_durations()


def test_where_nobody_takes_them_they_take_up_bounded_room() -> None:
    durations = Durations()
    for number in range(10_000):
        durations.add(float(number))
    taken = durations.take()
    assert len(taken) <= 4096
    assert taken[-1] == 9_999.0
    assert durations.take() == ()


# Speeds


def test_the_speed_of_fetches_counts_the_look_up_and_the_read() -> None:
    store = Tiers()
    store.to_host(key(LONG))
    tiers = Tiers(store=store.store)
    fetch = tiers.fetch(key([*LONG, 1]))
    assert fetch is not None
    assert tiers.cache.tier_speeds().fetch_tokens_per_s == 0.0
    for seconds in (0.5, 1.5):
        tiers.io.finish()
        fetch.ticket.seconds = seconds
        tiers.tick()
    assert tiers.cache.tier_speeds().fetch_tokens_per_s == len(LONG) / 2.0


def test_the_speed_of_loads_is_what_the_choice_between_loading_and_computing_learnt() -> None:
    tiers = Tiers()
    assert tiers.cache.tier_speeds().load_tokens_per_s == 0.0
    tiers.to_host(key(LONG))
    lease = tiers.load(key([*LONG, 1]))
    end_copies(tiers, 0.5)
    lease.release()
    assert tiers.cache.tier_speeds().load_tokens_per_s == len(LONG) / 0.5


def test_old_speeds_fade() -> None:
    speed = Speed()
    assert speed.tokens_per_s == 0.0
    speed.add(100, 1.0)
    assert speed.tokens_per_s == 100.0
    speed.add(0, 5.0)
    assert speed.tokens_per_s == 100.0
    for _ in range(50):
        speed.add(100, 0.1)
    assert 990.0 < speed.tokens_per_s <= 1000.0


def test_a_cache_without_tiers_knows_no_speeds() -> None:
    assert PrefixCache(8).tier_speeds() == TierSpeeds()
