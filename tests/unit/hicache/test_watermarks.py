"""When mirroring ahead begins, how far it goes, and that what it did makes evictions lose nothing."""

import pytest

from hicache.host import MirrorRules
from tests.unit.hicache.support import key
from tests.unit.hicache.tiers import Tiers

RULES = MirrorRules(low_watermark=0.25, high_watermark=0.5, max_copy_tokens=8, retry_s=1.0)


def prefix(first: int, length: int = 8) -> list[int]:
    return [first * 100 + n for n in range(length)]


def full(num_tokens: int, *, num_host_slots: int = 128) -> Tiers:
    """64 slots, of which `num_tokens` are cached, in prefixes of 8."""
    tiers = Tiers(64, num_host_slots, rules=RULES)
    tiers.serve(*(key(prefix(first)) for first in range(num_tokens // 8)))
    return tiers


def test_above_the_low_mark_nothing_is_mirrored() -> None:
    tiers = full(48)
    tiers.tick()
    assert not tiers.copies


def test_below_it_the_coldest_are_mirrored_up_to_the_high_mark() -> None:
    tiers = full(56)
    tiers.tick()
    assert tiers.stats.flying_tokens == 24
    tiers.settle()
    assert tiers.stats.settled_slots == 24
    assert [tiers.node_of(key(prefix(first))).settled for first in range(7)] == [True] * 3 + [False] * 4


def test_what_was_mirrored_ahead_is_evicted_without_loss_and_without_a_copy() -> None:
    tiers = full(64)
    tiers.tick()
    tiers.settle()
    with tiers.cache.acquire(key([1], "other"), now=tiers.now) as lease:
        assert lease.reserve(32, now=tiers.now)
        assert not tiers.copies
        assert tiers.stats.lost_tokens == 0
        assert tiers.stats.moved_tokens == 32


def test_whatever_was_mirrored_at_once_is_settled_parents_and_children() -> None:
    tiers = Tiers(64, 64)
    tiers.serve(key([*prefix(1), 1, 2]), key([*prefix(1), 3, 4]))
    tiers.mirror_everything()
    assert tiers.stats.settled_slots == tiers.cache.num_cached_slots == 12


def test_while_a_request_holds_it_nothing_is_settled() -> None:
    tiers = full(40)
    held = [tiers.start(key([*prefix(first), 1])) for first in range(5)]
    tiers.serve(key(prefix(7, 15)))
    tiers.tick()
    tiers.settle()
    assert tiers.stats.settled_slots == 15
    for lease in held:
        lease.release()
        tiers.cache.check()


def test_a_settled_prefix_that_is_used_is_the_last_to_go_again() -> None:
    tiers = full(64)
    tiers.tick()
    tiers.settle()
    tiers.acquire(key([*prefix(0), 1])).release()
    assert not tiers.node_of(key(prefix(0))).settled
    with tiers.cache.acquire(key([1], "other"), now=tiers.now) as lease:
        assert lease.reserve(24, now=tiers.now)
    assert tiers.cache.peek(key(prefix(0))).device == 8


def test_a_used_prefix_keeps_its_copy_and_is_settled_again_without_another_one() -> None:
    tiers = full(64)
    tiers.tick()
    tiers.settle()
    tiers.acquire(key([*prefix(0), 1])).release()
    mirrored = tiers.stats.mirrored_tokens
    tiers.cache.prepare(64, now=tiers.now)
    tiers.settle()
    assert tiers.node_of(key(prefix(0))).settled
    assert tiers.stats.mirrored_tokens == mirrored + 32, "only what had none before"


def test_a_small_host_is_not_filled_with_copies_of_what_the_device_has() -> None:
    tiers = full(64, num_host_slots=16)
    tiers.tick()
    tiers.settle()
    assert tiers.stats.host_cached_slots == 8


def test_a_step_is_prepared_for_however_many_are_free() -> None:
    tiers = full(48)
    tiers.cache.prepare(40, now=tiers.now)
    tiers.settle()
    assert tiers.stats.settled_slots >= 24


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (0.5, 0.4), (0.5, 1.1)])
def test_marks_that_make_no_sense_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="watermark"):
        MirrorRules(low_watermark=low, high_watermark=high)


@pytest.mark.parametrize("field", ["max_flying_tokens", "max_copy_tokens", "copy_timeout_s", "retry_s"])
def test_limits_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        MirrorRules(**{field: 0})
