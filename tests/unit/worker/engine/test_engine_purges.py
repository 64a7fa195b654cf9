"""Namespaces that are dropped while sequences use them: nobody is disturbed, and nothing of them stays behind."""

from dataclasses import replace

import pytest

from hicache.cache import Holdings
from hicache.keys import Namespace, PrefixKey, Segment
from tests.unit.worker.engine.harness import TENANT_A, TENANT_B, Rig, answer, make_request, prompt
from worker.config import EngineConfig

PUBLIC = Namespace(b"public".ljust(16))


def held(rig: Rig, namespace: Namespace) -> int:
    return rig.cache.holdings(namespace).device


def free(rig: Rig) -> int:
    """What is free when the cache has done what can wait."""
    while rig.engine.pending:
        rig.engine.idle(rig.now)
    rig.engine.check()
    return rig.engine.load().free_slots


def test_what_nobody_uses_is_free_at_once() -> None:
    rig = Rig(100)
    rig.submit(make_request(0, prompt(40)), make_request(1, prompt(30), namespace=TENANT_B, tenant="b"))
    rig.run()
    assert rig.engine.drop_cache([TENANT_A, TENANT_A, Namespace(b"unknown".ljust(16))]) == Holdings(43, 0)
    assert rig.engine.drop_cache([TENANT_A]) == Holdings(0, 0)
    rig.submit(make_request(2, prompt(40)), make_request(3, prompt(30), namespace=TENANT_B, tenant="b"))
    rig.run()
    assert rig.admission(2).hit.total == 0
    assert rig.admission(3).hit.total == 29


def test_who_runs_goes_on_undisturbed_and_leaves_nothing() -> None:
    rig = Rig(200)
    rig.submit(make_request(0, prompt(40), max_new_tokens=20))
    rig.submit(make_request(1, prompt(50), max_new_tokens=5))
    rig.step()
    rig.step()
    before = rig.engine.load().free_slots
    assert rig.engine.drop_cache([TENANT_A]) == Holdings(0, 0)
    rig.engine.check()
    assert rig.engine.load().free_slots == before
    rig.run()
    assert rig.is_undisturbed(0)
    assert rig.tokens(0) == answer(prompt(40), 20)
    assert rig.tokens(1) == answer(prompt(50), 5)
    assert free(rig) == 200


def test_a_part_that_is_used_follows_when_it_is_not() -> None:
    rig = Rig(200)
    rig.submit(make_request(0, prompt(40)))
    rig.submit(make_request(1, [*prompt(20), *prompt(30, seed=9)], max_new_tokens=40))
    rig.run()
    rig.submit(make_request(2, [*prompt(20), *prompt(30, seed=9)], max_new_tokens=40))
    rig.step()
    freed = rig.engine.drop_cache([TENANT_A])
    assert 0 < freed.device < 200 - rig.engine.load().free_slots
    rig.run()
    assert free(rig) == 200


@pytest.mark.parametrize("pool", [4_000, 90])
def test_who_waits_is_served_as_before_and_what_that_leaves_goes_with_the_last(pool: int) -> None:
    """In the small pool some are paused, too, and start again from what they left."""
    rig = Rig(pool, config=EngineConfig(max_running=3, headroom_tokens=1))
    rig.submit(*[make_request(number, prompt(30, seed=number % 2), max_new_tokens=20) for number in range(8)])
    rig.step()
    rig.engine.drop_cache([TENANT_A])
    seen = 0
    while rig.engine.has_work:
        rig.step()
        seen = max(seen, held(rig, TENANT_A))
    for number in range(8):
        assert rig.tokens(number) == answer(prompt(30, seed=number % 2), 20)
    assert seen > 0
    assert held(rig, TENANT_A) == 0
    assert free(rig) == pool


def test_what_comes_later_stays_where_nobody_has_used_the_namespace_since() -> None:
    rig = Rig(400)
    rig.submit(make_request(0, prompt(40), max_new_tokens=30))
    rig.step()
    rig.engine.drop_cache([TENANT_A])
    rig.submit(make_request(1, prompt(40), max_new_tokens=2))
    rig.run()
    assert rig.admission(1).hit.total == 0
    assert held(rig, TENANT_A) == 41
    rig.submit(make_request(2, prompt(40), max_new_tokens=2))
    rig.run()
    assert rig.admission(2).hit.total == 39


def test_completions_that_are_born_later_leave_nothing_either() -> None:
    rig = Rig(400, config=EngineConfig(max_chunk_tokens=10))
    params = replace(make_request(0).params, n=4, max_new_tokens=6)
    rig.submit(make_request(0, prompt(40), params=params))
    rig.step()
    rig.engine.drop_cache([TENANT_A])
    rig.run()
    assert free(rig) == 400
    assert [len(rig.tokens(0, index)) for index in range(4)] == [6] * 4


def test_who_is_cancelled_while_it_waits_does_not_keep_a_namespace_from_being_used() -> None:
    rig = Rig(400, config=EngineConfig(max_running=1))
    rig.submit(make_request(0, prompt(40), namespace=TENANT_B, tenant="b", max_new_tokens=10))
    rig.submit(make_request(1, prompt(40), max_new_tokens=10))
    rig.step()
    rig.engine.drop_cache([TENANT_A])
    rig.engine.cancel((0, 1), rig.now)
    rig.submit(make_request(2, prompt(40), max_new_tokens=2))
    rig.run()
    assert held(rig, TENANT_A) == 41


def test_a_public_namespace_takes_what_hangs_below_it_along() -> None:
    rig = Rig(400)
    below = PrefixKey((Segment(PUBLIC, prompt(60)), Segment(TENANT_A, prompt(20, seed=3))))
    rig.submit(replace(make_request(0), key=below), make_request(1, prompt(30)))
    rig.run()
    assert held(rig, TENANT_A) == 23 + 33
    assert rig.engine.drop_cache([PUBLIC]) == Holdings(60, 0)  # what others have below it is not counted
    rig.submit(replace(make_request(2), key=below), make_request(3, prompt(30)))
    rig.run()
    assert rig.admission(2).hit.total == 0
    assert rig.admission(3).hit.total == 29


def test_a_tenants_namespace_goes_below_public_ones_too_and_these_stay() -> None:
    rig = Rig(400)
    below = PrefixKey((Segment(PUBLIC, prompt(60)), Segment(TENANT_A, prompt(20, seed=3))))
    rig.submit(replace(make_request(0), key=below), make_request(1, prompt(30)))
    rig.run()
    assert rig.engine.drop_cache([TENANT_A]) == Holdings(23 + 33, 0)
    rig.submit(replace(make_request(2), key=below))
    rig.run()
    assert rig.admission(2).hit.device == 60


def test_a_drop_between_a_pass_and_its_end_takes_no_slot_away_that_it_uses() -> None:
    rig = Rig(400, config=EngineConfig(max_chunk_tokens=16))
    rig.beside = lambda: rig.engine.drop_cache([TENANT_A])
    rig.submit(*[make_request(number, prompt(50, seed=number), max_new_tokens=8) for number in range(3)])
    rig.run()
    for number in range(3):
        assert rig.tokens(number) == answer(prompt(50, seed=number), 8)
    assert free(rig) == 400
