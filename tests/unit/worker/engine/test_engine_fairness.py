"""What one tenant does to another: floods, places, slots, pauses, and a large request among small ones."""

from dataclasses import replace

import numpy as np
import pytest

from hicache.cache import Hit, PrefixCache
from hicache.keys import PrefixKey
from tests.unit.worker.engine.harness import Rig, answer, make_request, prompt
from tests.unit.worker.engine.timed_rig import Lengths, poisson, serve, traffic
from tests.unit.worker.engine.waiting_sequences import namespace_of
from worker.config import EngineConfig
from worker.engine import Request

CHAT = Lengths(prompt=(50, 400), output=(10, 50))
SHORT = Lengths(prompt=(20, 100), output=(10, 50))

FLOODS = {
    "prompts of any length": Lengths(prompt=(300, 900), output=(50, 150)),
    "long prompts": Lengths(prompt=(1500, 3000), output=(10, 30)),
    "long answers": Lengths(prompt=(20, 60), output=(300, 600)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_one_tenant_does_not_double_the_p99_time_to_first_token_of_another(flood: str) -> None:
    config = EngineConfig(max_waiting=1000)
    quiet = traffic("quiet", 0, poisson(40, per_second=2.0, start=2.0, seed=1), CHAT, seed=2)
    alone = serve(quiet, quiet, config, num_slots=20_000)
    loud = traffic("loud", 1000, [0.0] * 300, FLOODS[flood], seed=3)
    beside = serve([*quiet, *loud], quiet, config, num_slots=20_000)
    assert beside.rig.engine.load().waiting > 50, "the flood is over too early"
    assert beside.percentile(quiet, 99) < 2 * alone.percentile(quiet, 99)


def test_shorter_contested_steps_do_the_same_for_very_short_prompts() -> None:
    config = EngineConfig(max_waiting=1000, contested_prompt_tokens=64)
    quiet = traffic("quiet", 0, poisson(40, per_second=2.0, start=0.0, seed=1), SHORT, seed=2)
    alone = serve(quiet, quiet, config, num_slots=20_000)
    loud = traffic("loud", 1000, [2.0] * 300, FLOODS["prompts of any length"], seed=3)
    beside = serve([*quiet, *loud], quiet, config, num_slots=20_000)
    assert beside.rig.engine.load().waiting > 50, "the flood is over too early"
    assert beside.percentile(quiet, 99) < 2 * alone.percentile(quiet, 99)


def test_without_fairness_that_flood_would_be_felt() -> None:
    config = EngineConfig(max_waiting=1000, order="fcfs")
    quiet = traffic("quiet", 0, poisson(5, per_second=2.0, start=2.0, seed=1), CHAT, seed=2)
    alone = serve(quiet, quiet, config, num_slots=20_000)
    loud = traffic("loud", 1000, [0.0] * 60, FLOODS["prompts of any length"], seed=3)
    beside = serve([*quiet, *loud], quiet, config, num_slots=20_000)
    assert beside.percentile(quiet, 99) > 10 * alone.percentile(quiet, 99)


FEW_PLACES = EngineConfig(max_running=8, max_step_tokens=64, max_chunk_tokens=32)


def of(tenant: str, number: int, length: int = 10, max_new_tokens: int = 50) -> Request:
    return make_request(
        number,
        prompt(length, number),
        max_new_tokens=max_new_tokens,
        tenant=tenant,
        namespace=namespace_of(tenant),
    )


def test_the_newest_of_who_has_all_places_pauses_for_one_who_has_none() -> None:
    rig = Rig(config=FEW_PLACES)
    rig.submit(*(of("b", number) for number in range(8)))
    rig.step()
    rig.step()
    rig.submit(of("a", 100))
    rig.step()
    assert rig.observer.num_pauses == 1
    assert len(rig.tokens(100)) == 1
    rig.run()
    assert rig.observer.num_pauses == 1
    assert not rig.is_undisturbed(7)
    for number in (*range(8), 100):
        assert rig.tokens(number) == answer(prompt(10, number), 50)
    rig.assert_nothing_is_held()


def test_a_tenant_alone_never_pauses_for_itself() -> None:
    rig = Rig(config=FEW_PLACES)
    rig.submit(*(of("b", number) for number in range(40)))
    rig.run(check=False)
    assert rig.observer.num_pauses == 0


def test_two_tenants_with_more_than_enough_to_do_share_places_without_pausing_each_other_on_and_on() -> None:
    rig = Rig(config=FEW_PLACES)
    rig.submit(*(of("b", number) for number in range(60)))
    for _ in range(5):
        rig.step(check=False)
    rig.submit(*(of("a", number) for number in range(100, 160)))
    rig.run(check=False)
    # About to their halves of eight places, once.
    assert 1 <= rig.observer.num_pauses <= 4


def test_each_request_pauses_a_few_others_at_most() -> None:
    rig = Rig(num_slots=600, config=replace(FEW_PLACES, headroom_tokens=64))
    for number in range(200):
        rig.submit(of("b", number, length=60, max_new_tokens=60))
        if number % 5 == 0:
            rig.submit(of("a", 1000 + number, length=30, max_new_tokens=5))
        rig.step(check=False)
    rig.run(check=False)
    assert 0 < rig.observer.num_pauses <= 4 * 40 + 20


def test_a_place_is_not_taken_from_who_has_no_more_than_its_share() -> None:
    rig = Rig(config=FEW_PLACES)
    rig.submit(*(of("b", number) for number in range(4)), *(of("c", 50 + number) for number in range(4)))
    rig.step()
    rig.step()
    rig.submit(of("a", 100))
    rig.step()
    # A third of eight places is less than three: who has four can spare one.
    assert rig.observer.num_pauses == 1
    rig.submit(of("a", 101))
    rig.step()
    assert rig.observer.num_pauses == 1


def test_nobody_pauses_for_a_lower_priority() -> None:
    rig = Rig(config=FEW_PLACES)
    rig.submit(*(replace(of("b", number), priority=1) for number in range(8)))
    rig.step()
    rig.submit(of("a", 100))
    rig.run()
    assert rig.observer.num_pauses == 0
    assert rig.tokens(100) == answer(prompt(10, 100), 50)


def test_slots_are_made_free_for_who_has_few_by_who_has_more_than_its_share() -> None:
    rig = Rig(num_slots=400, config=replace(FEW_PLACES, headroom_tokens=1, max_step_tokens=512, max_chunk_tokens=128))
    rig.submit(*(of("b", number, length=90, max_new_tokens=100) for number in range(4)))
    for _ in range(5):
        rig.step()
    rig.submit(of("a", 100, length=80, max_new_tokens=20))
    rig.step()
    assert rig.engine.load().running >= 3
    assert rig.observer.num_pauses > 0
    assert len(rig.tokens(100)) == 1
    rig.run()
    for number in range(4):
        assert rig.tokens(number) == answer(prompt(90, number), 100)
    rig.assert_nothing_is_held()


def test_out_of_slots_a_tenant_above_its_share_pauses_its_own_before_those_below() -> None:
    rig = Rig(num_slots=300, config=replace(FEW_PLACES, headroom_tokens=1))
    rig.submit(*(of("b", number, length=20, max_new_tokens=100) for number in range(5)))
    rig.step()
    rig.submit(of("a", 100, length=10, max_new_tokens=80))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert rig.is_undisturbed(100)


@pytest.mark.parametrize(("order", "least"), [("fcfs", 1), ("lpm", 1), ("fair", 0)])
def test_a_large_request_that_does_not_fit_is_overtaken_for_a_while_and_not_for_ever(order: str, least: int) -> None:
    config = EngineConfig(max_running=8, max_step_tokens=512, max_chunk_tokens=256, headroom_tokens=1, order=order)  # type: ignore[arg-type]
    rig = Rig(num_slots=240, config=config)
    ahead: set[int] = set()
    for number in range(200):
        rig.submit(of("a", number, length=20, max_new_tokens=20))
        if number == 20:
            rig.submit(of("b", 1000, length=180, max_new_tokens=5))
            ahead = {other for other in range(number + 1) if order == "fcfs" or rig.tokens(other)}
        overtaken_by = {other for other in range(number) if rig.tokens(other)} - ahead
        rig.step(check=False)
        if rig.tokens(1000):
            break
    assert rig.tokens(1000), "the large one starved"
    assert number < 20 + 100
    # As many as need what it needs itself, and no more.
    assert least <= len(overtaken_by) <= 180 // 20


@pytest.mark.parametrize("order", ["fair", "lpm", "dfs_weight"])
def test_a_rare_cold_request_under_a_stream_with_a_hot_prefix_waits_for_a_bounded_time(order: str) -> None:
    config = EngineConfig(max_running=2, max_step_tokens=64, max_chunk_tokens=64, order=order, max_wait_s=30.0)  # type: ignore[arg-type]
    rig = Rig(config=config)
    hot = prompt(40)
    for number in range(300):
        rig.submit(make_request(number, [*hot, number % 1000, number // 1000], max_new_tokens=4))
        if number == 20:
            rig.submit(make_request(1000, prompt(50, seed=9), max_new_tokens=4))
        rig.step(check=False)
        if rig.tokens(1000):
            break
    # A step is a second: once it has waited for 30 of them, it is among the next four to start.
    assert rig.tokens(1000)
    assert number <= 20 + 30 + 4 * 4


class CountingCache(PrefixCache):
    """Counts how often it is asked what would be hit."""

    num_peeks = 0

    def peek(self, key: PrefixKey, *, max_tokens: int | None = None) -> Hit:
        self.num_peeks += 1
        return super().peek(key, max_tokens=max_tokens)


@pytest.mark.parametrize("order", ["fair", "lpm", "dfs_weight", "fcfs"])
def test_a_thousand_that_wait_cost_as_many_questions_to_the_cache_as_there_are_changes(order: str) -> None:
    cache = CountingCache(20_000)
    config = EngineConfig(max_waiting=2000, order=order)  # type: ignore[arg-type]
    rig = Rig(20_000, config=config, cache=lambda _: cache)
    for number in range(1000):
        # Groups of four share a prefix; nobody's first token is another group's.
        tokens = [number // 4, *prompt(40, seed=number // 4), number % 4, 5]
        rig.submit(make_request(number, tokens, max_new_tokens=20, tenant="ab"[number % 2]))
    assert cache.num_peeks <= 1000
    cache.num_peeks = num_steps = 0
    num_changes = 0
    while rig.engine.load().waiting > 500:
        before = rig.engine.load().waiting
        rig.step(check=False)
        num_changes += before - rig.engine.load().waiting
        num_steps += 1
    assert num_steps > 20
    # Who starts, those of its group once each, and the one that finds no room in each step.
    assert cache.num_peeks <= 5 * num_changes + 3 * num_steps


def test_a_line_that_nobody_can_start_from_asks_nothing() -> None:
    cache = CountingCache(20_000)
    rig = Rig(20_000, config=EngineConfig(max_running=4, max_waiting=2000), cache=lambda _: cache)
    rig.submit(*(make_request(number, [number, *prompt(20, number)], max_new_tokens=200) for number in range(1000)))
    rig.step()
    rig.step()
    cache.num_peeks = 0
    for _ in range(50):
        rig.step(check=False)
    assert cache.num_peeks <= 2


@pytest.mark.parametrize("order", ["fair", "lpm", "dfs_weight", "fcfs", "priority"])
def test_a_tenants_requests_start_in_the_same_order_whatever_another_one_has_cached(order: str) -> None:
    def starts(prompts_cached_of_b: int) -> list[int]:
        config = EngineConfig(
            max_running=2,
            max_step_tokens=64,
            max_chunk_tokens=64,
            max_wait_s=1000.0,
            order=order,  # type: ignore[arg-type]
        )
        rig = Rig(config=config)
        for number in (200, 201, 202):  # a's own, the same both times; nothing else is shared
            rig.submit(of("a", number))
        for number in range(prompts_cached_of_b):
            rig.submit(replace(of("b", 300 + number), key=of("b", number, length=40).key))
        rig.run(check=False)
        for number in range(20):
            rig.submit(of("b", number, length=40, max_new_tokens=5))
            start = prompt(10, 200 + number % 3) if number % 2 else prompt(10, 500 + number)
            rig.submit(replace(of("a", 100 + number), key=PrefixKey.of(namespace_of("a"), np.array([*start, number]))))
        rig.run(check=False)
        return [number for _, number in rig.outputs if 100 <= number < 120]  # in the order of their first news

    assert starts(prompts_cached_of_b=0) == starts(prompts_cached_of_b=20)
