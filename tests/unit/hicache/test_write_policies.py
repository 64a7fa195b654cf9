"""Which prefixes get their copy on the host while they are in use, and which only when they are about to leave."""

import pytest

from hicache.host import MirrorRules, WriteBack, WritePolicy, WriteThrough, WriteThroughSelective
from tests.unit.hicache.support import key
from tests.unit.hicache.tiers import Tiers

LONG = list(range(100, 116))
MORE = key([*LONG, 1])


def copied(tiers: Tiers) -> int:
    """Tokens whose mirror has begun, after a tick."""
    tiers.tick()
    return sum(len(ticket.copy) for ticket in tiers.copies)


def test_write_back_copies_nothing_that_need_not_go() -> None:
    tiers = Tiers(64, 64, write_policy=WriteBack())
    tiers.serve(key(LONG), MORE, MORE)
    assert copied(tiers) == 0


def test_write_through_copies_what_a_request_leaves_behind() -> None:
    tiers = Tiers(64, 64, write_policy=WriteThrough())
    lease = tiers.start(key(LONG))
    assert copied(tiers) == 0, "nothing is copied before the request ends"
    lease.release()
    assert copied(tiers) == 16


def test_write_through_copies_what_lies_above_too() -> None:
    tiers = Tiers(64, 64, write_policy=WriteThrough())
    first, second = tiers.start(MORE), tiers.start(key([*LONG, 2]))
    first.release()
    second.release()
    assert copied(tiers) == 18


def test_write_through_copies_nothing_twice() -> None:
    tiers = Tiers(64, 64, write_policy=WriteThrough())
    tiers.serve(key(LONG))
    tiers.settle()
    tiers.serve(MORE, MORE)
    assert copied(tiers) == 1


def test_selective_write_through_waits_for_the_second_hit() -> None:
    tiers = Tiers(64, 64, write_policy=WriteThroughSelective(hit_threshold=2))
    tiers.serve(key(LONG))
    assert copied(tiers) == 0
    tiers.acquire(MORE).release()
    assert copied(tiers) == 0
    tiers.acquire(MORE).release()
    assert copied(tiers) == 16


@pytest.mark.parametrize("write_policy", [WriteBack(), WriteThrough(), WriteThroughSelective()])
def test_under_every_policy_what_is_evicted_comes_back(write_policy: WritePolicy) -> None:
    tiers = Tiers(32, 64, write_policy=write_policy, rules=MirrorRules(low_watermark=0.3, high_watermark=0.3))
    prefixes = [key([first] * 4) for first in range(30)]
    for prefix in prefixes:
        tiers.serve(prefix)
        tiers.settle()
    found = [prefix for prefix in prefixes if tiers.cache.peek(prefix).total == 4]
    assert len(found) >= 64 // 4
    for prefix in found:
        tiers.serve(prefix)  # reads what it finds
        tiers.settle()
