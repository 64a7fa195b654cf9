"""What tenants are promised of the slots, seen by those who run: who fits, who pauses, and that all get there."""

from dataclasses import replace

import pytest

from hicache.cache import PrefixCache
from hicache.radix.shares import Share
from tests.unit.worker.engine.harness import TENANT_B, Rig, answer, make_request, prompt
from worker.config import EngineConfig
from worker.engine import Request
from worker.errors import FailureCode

TIGHT = EngineConfig(max_running=8, max_chunk_tokens=16, max_step_tokens=64, headroom_tokens=1)


ROOMY = replace(TIGHT, headroom_tokens=16)


def shared_rig(num_slots: int, page_size: int = 1, config: EngineConfig = TIGHT, **floors: float) -> Rig:
    """Return a rig in which each tenant named is promised this part of the slots."""
    shares = {tenant: Share(floor=floor) for tenant, floor in floors.items()}
    cache = PrefixCache(num_slots, page_size=page_size, shares=shares)
    return Rig(num_slots, page_size, config=config, cache=lambda _: cache)


def of_a(number: int, length: int, max_new_tokens: int, priority: int = 0) -> Request:
    tokens = prompt(length, number)
    return make_request(number, tokens, max_new_tokens=max_new_tokens, tenant="a", priority=priority)


def of_b(number: int, length: int, max_new_tokens: int, priority: int = 0) -> Request:
    tokens = prompt(length, number)
    return make_request(
        number, tokens, max_new_tokens=max_new_tokens, tenant="b", namespace=TENANT_B, priority=priority
    )


@pytest.mark.parametrize(("tenant", "limit"), [("a", 80), ("b", 70), ("c", 50)])
def test_what_can_never_fit_because_of_the_floors_of_others_is_refused_at_once(tenant: str, limit: int) -> None:
    rig = shared_rig(100, a=0.3, b=0.2)
    rig.submit(make_request(0, prompt(40), max_new_tokens=limit - 39, tenant=tenant))
    rig.submit(make_request(1, prompt(40), max_new_tokens=limit - 40, tenant=tenant))
    rig.run()
    assert rig.failure(0).code is FailureCode.INVALID_ARGUMENT
    assert f"{limit} tokens" in rig.failure(0).message
    assert rig.tokens(1) == answer(prompt(40), limit - 40)


def test_nobody_pauses_whose_slots_could_not_be_had_anyway() -> None:
    rig = shared_rig(100, config=ROOMY, b=0.5)
    # Those of tenant a want more than there is beside each other and the floor. The newest is within the floor.
    rig.submit(of_a(0, 10, 40), of_a(1, 10, 40))
    rig.step()
    rig.submit(of_b(2, 20, 29))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert rig.is_undisturbed(0)
    assert rig.is_undisturbed(2)
    for number, (length, num_new) in enumerate([(10, 40), (10, 40), (20, 29)]):
        assert rig.tokens(number) == answer(prompt(length, number), num_new)


def test_who_has_more_than_its_floor_pauses_for_an_older_one_of_another_tenant() -> None:
    rig = shared_rig(100, b=0.2)
    rig.submit(of_a(0, 10, 70))
    rig.step()
    rig.submit(of_b(1, 20, 40))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert rig.is_undisturbed(0)
    assert rig.tokens(1) == answer(prompt(20, 1), 40)


def test_a_tenant_gets_what_it_is_promised_and_the_other_one_pauses_and_ends() -> None:
    rig = shared_rig(100, b=0.5)
    for number in (10, 11):
        rig.submit(of_b(number, 20, 1))
        rig.run()
    # 40 slots of b are cached and promised. a counts on the other 60, and b takes some of them.
    rig.submit(of_a(0, 5, 45), of_a(1, 1, 30))
    rig.step()
    rig.submit(of_b(2, 20, 20))
    rig.run()
    assert rig.is_undisturbed(2)
    assert rig.tokens(0) == answer(prompt(5, 0), 45)
    assert rig.tokens(1) == answer(prompt(1, 1), 30)
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("page_size", [1, 4])
def test_tenants_with_floors_do_not_pause_each_other_for_ever(page_size: int) -> None:
    rig = shared_rig(120, page_size, a=0.3, b=0.3)
    requests = [(of_a, of_b)[number % 2](number, 8, 36) for number in range(24)]
    rig.submit(*requests)
    num_steps = rig.run()
    for number in range(24):
        assert rig.tokens(number) == answer(prompt(8, number), 36)
    # Not much harder than without floors.
    plain = Rig(120, page_size, config=TIGHT)
    plain.submit(*requests)
    assert num_steps < 1.5 * plain.run()
    assert rig.observer.num_pauses < 1.5 * plain.observer.num_pauses
    rig.assert_nothing_is_held()


def test_the_first_by_precedence_is_never_paused_for_another_tenant() -> None:
    rig = shared_rig(120, a=0.3, b=0.3)
    rig.submit(*((of_a, of_b)[number % 2](number, 8, 36, priority=int(number == 7)) for number in range(24)))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert rig.is_undisturbed(7)
    assert rig.is_undisturbed(0)


# Floors that requests say


def saying(floor: int, request: Request) -> Request:
    return replace(request, cache_floor_tokens=floor)


def test_what_the_latest_request_of_a_tenant_says_holds() -> None:
    rig = shared_rig(100)
    for number, floor in enumerate([40, 10, 0, 25]):
        rig.submit(saying(floor, of_a(number, 5, 2)))
        assert rig.cache.floor_slots("a") == floor
        rig.run()
    rig.engine.check()


def test_a_floor_keeps_what_a_tenant_has_from_a_flood() -> None:
    rig = shared_rig(100)
    rig.submit(saying(30, of_a(0, 20, 5)))
    rig.run()
    for number in range(1, 9):
        rig.submit(of_b(number, 40, 10))
        rig.run()
    rig.submit(saying(30, make_request(9, prompt(20, 0), tenant="a", max_new_tokens=5)))
    rig.run()
    assert rig.admission(9).hit.device == 19


def test_a_floor_never_locks_out_who_is_here() -> None:
    rig = shared_rig(100, a=0.5)
    rig.submit(saying(5, of_a(0, 5, 2)))
    rig.submit(of_b(1, 70, 10))
    rig.submit(saying(0, of_a(2, 5, 2)))  # as configured, as far as that leaves b enough
    assert rig.cache.floor_slots("a") == 20
    rig.submit(saying(90, of_a(3, 5, 2)))
    assert rig.cache.floor_slots("a") == 20
    rig.run()
    assert rig.tokens(1) == answer(prompt(70, 1), 10)
    rig.submit(saying(90, of_a(4, 5, 2)))
    assert rig.cache.floor_slots("a") == 90
    rig.run()


def test_floors_that_do_not_fit_are_told_of_once_a_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    rig = shared_rig(100)
    rig.submit(*[saying(95, of_a(number, 5, 2)) for number in range(3)])
    rig.run()
    assert capsys.readouterr().out.count("does not fit") == 1


def asking(number: int, tenant: str, floor: int) -> Request:
    return replace(make_request(number, prompt(4, number), max_new_tokens=1, tenant=tenant), cache_floor_tokens=floor)


def test_what_was_promised_and_does_not_fit_is_told() -> None:
    rig = shared_rig(100)
    rig.submit(asking(0, "a", 60))
    rig.run()
    assert rig.observer.cut_floor_tokens == 0
    rig.submit(asking(1, "b", 60))
    rig.run()
    assert rig.observer.cut_floor_tokens == 30  # a tenth is left to all
    rig.submit(asking(2, "b", 60))
    rig.run()
    assert rig.observer.cut_floor_tokens == 30
    rig.submit(asking(3, "b", 20))
    rig.run()
    assert rig.observer.cut_floor_tokens == 0


def test_namespaces_are_told_as_they_come_and_go() -> None:
    rig = shared_rig(100)
    rig.submit(of_a(0, 10, 1), of_b(1, 10, 1))
    rig.run()
    assert rig.observer.namespaces == 2
    rig.engine.drop_cache([TENANT_B])
    rig.submit(of_a(2, 10, 1))
    rig.run()
    assert rig.observer.namespaces == 1
