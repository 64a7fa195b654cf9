"""In which order sequences start: prefixes of a tenant, who has waited too long, what tenants learn of others."""

import numpy as np
import pytest

from tests.unit.worker.engine.waiting_sequences import ToldCache, finish, is_ready, waiting
from worker.config import EngineConfig
from worker.engine import waiting as lines
from worker.engine.sequence import Sequence
from worker.engine.waiting import WaitingLine
from worker.engine.waiting.service import FairService

BY_TENANT = ["fair", "lpm", "dfs_weight"]
ALL = ["fair", "fcfs", "lpm", "dfs_weight", "priority"]
CONFIG = EngineConfig(max_wait_s=10.0, fair_quantum_tokens=64)


def start_next(line: WaitingLine, now: float = 0.0, cached: ToldCache | None = None) -> Sequence:
    """Start the first candidate, and let it end at once."""
    sequence = next(iter(line.candidates(now, is_ready)))
    cached_tokens = cached.tokens.get(sequence.order, 0) if cached is not None else 0
    line.start(sequence, cached_tokens)
    finish(sequence, cached_tokens, 4)
    line.settle(sequence)
    return sequence


def test_longest_prefix_first_holds_with_more_than_a_thousand_waiting() -> None:
    cache = ToldCache({order: order % 37 for order in range(1500)})
    line = lines.by_name("lpm", CONFIG, cache)
    for order in range(1500):
        line.push(waiting(order, [order] * 40))
    hits = [cache.tokens[sequence.order] for sequence in line.candidates(0.0, is_ready)]
    assert hits == sorted(hits, reverse=True)


@pytest.mark.parametrize("name", ["fair", "lpm"])
def test_who_gains_by_what_another_one_computes_moves_forward(name: str) -> None:
    cache = ToldCache({0: 10})
    line = lines.by_name(name, CONFIG, cache)
    line.push(waiting(0, [1] * 20))
    line.push(waiting(1, [2] * 20))
    line.push(waiting(2, [3] * 20))
    cache.tokens[2] = 15
    line.published(waiting(9, [*[3] * 15, 4]), 15)
    assert [sequence.order for sequence in line.candidates(0.0, is_ready)] == [2, 0, 1]


@pytest.mark.parametrize("name", ["fair", "lpm"])
def test_who_has_lost_what_was_cached_moves_back_when_its_turn_comes(name: str) -> None:
    cache = ToldCache({0: 10, 1: 5})
    line = lines.by_name(name, CONFIG, cache)
    for order in range(3):
        line.push(waiting(order, [order] * 20))
    cache.tokens[0] = 1
    assert [sequence.order for sequence in line.candidates(0.0, is_ready)] == [1, 0, 2]


@pytest.mark.parametrize("name", ["fair", "lpm"])
def test_with_a_thousand_waiting_only_those_are_asked_about_that_changed(name: str) -> None:
    cache = ToldCache()
    line = lines.by_name(name, CONFIG, cache)
    for order in range(1000):
        line.push(waiting(order, [order % 10, *[7] * 20, order]))
    cache.asked.clear()
    # Of one group, a prefix is computed in four pieces; then one sequence starts.
    for num_tokens in (5, 10, 15, 20):
        cache.tokens.update(dict.fromkeys(range(3, 1000, 10), num_tokens))
        line.published(waiting(2000, [3, *[7] * 20, 2000]), num_tokens)
    assert sum(cache.asked.values()) == 4 * 100
    cache.asked.clear()
    start_next(line)
    assert sum(cache.asked.values()) == 1


@pytest.mark.parametrize("name", ["fair", "lpm"])
def test_a_cold_request_under_a_stream_of_hot_ones_waits_for_a_bounded_time(name: str) -> None:
    cache = ToldCache()
    line = lines.by_name(name, CONFIG, cache)
    line.push(waiting(0, [9] * 50, arrived_at=0.0))
    order = 1
    for now in range(1, 1000):
        for _ in range(2):  # more than can start
            cache.tokens[order] = 40
            line.push(waiting(order, [*[1] * 40, order], arrived_at=float(now)))
            order += 1
        if start_next(line, float(now), cache).order == 0:
            break
    assert 10 < now <= 10 + 4


def test_a_depth_first_subtree_that_stays_heavy_lets_the_others_have_their_turn_in_time() -> None:
    line = lines.by_name("dfs_weight", CONFIG, ToldCache())
    line.push(waiting(0, [9] * 50, arrived_at=0.0))
    for now in range(1, 100):
        for number in range(2):
            line.push(waiting(now * 2 + number, [*[1] * 40, now, number], arrived_at=float(now)))
        if start_next(line, float(now)).order == 0:
            break
    assert 10 < now <= 10 + 4


def test_depth_first_finishes_a_shared_prefix_before_it_begins_another() -> None:
    line = lines.by_name("dfs_weight", CONFIG, ToldCache())
    for order in range(12):
        line.push(waiting(order, [order % 3] * 30 + [order]))
    line.push(waiting(12, [1] * 30 + [12]))
    groups = [start_next(line).request.key.token_ids[0] for _ in range(13)]
    assert groups == [1] * 5 + [0] * 4 + [2] * 4


@pytest.mark.parametrize("name", BY_TENANT)
def test_low_priority_under_a_stream_of_high_priority_waits_for_a_bounded_time(name: str) -> None:
    line = lines.by_name(name, CONFIG, ToldCache())
    line.push(waiting(0, tenant="low", priority=0, arrived_at=0.0))
    for now in range(1, 1000):
        for number in range(2):
            line.push(waiting(now * 2 + number, tenant="high", priority=5, arrived_at=float(now)))
        if start_next(line, float(now)).order == 0:
            break
    assert 10 < now <= 10 + 4


@pytest.mark.parametrize("name", BY_TENANT)
def test_most_starts_are_high_priority_however_long_the_others_wait(name: str) -> None:
    line = lines.by_name(name, CONFIG, ToldCache())
    for order in range(400):
        line.push(waiting(order, tenant="high" if order % 2 else "low", priority=order % 2))
    started = [start_next(line, now=1000.0).request.tenant for _ in range(200)]
    assert started.count("high") >= 150


def turns_of(name: str, hits_of_others: int, victim: str) -> tuple[list[int], list[int], list[float]]:
    """Return the victim's starts in order, their places among all starts, and its levels at each, if it has levels.

    Three tenants wait with the same requests whatever `hits_of_others`, tokens that the cache has of the others'.
    """
    rng = np.random.default_rng(1)
    cache = ToldCache()
    line = lines.by_name(name, CONFIG, cache)
    for order in range(90):
        tenant = "abc"[order % 3]
        length = int(rng.integers(50, 100))
        own_hit = int(rng.integers(0, 50))
        cache.tokens[order] = own_hit if tenant == victim else min(hits_of_others, order % 50)
        line.push(waiting(order, [int(rng.integers(5))] * length, tenant=tenant, priority=int(rng.integers(2))))
    turns = getattr(line, "_turns", None)
    started, places, levels = [], [], []
    for place in range(60):
        before = turns.level(victim) if isinstance(turns, FairService) else 0.0
        sequence = start_next(line, cached=cache)
        if sequence.request.tenant == victim:
            started.append(sequence.order)
            places.append(place)
            levels.append(before)
    return started, places, levels


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_what_others_have_cached_changes_neither_a_tenants_own_order_nor_when_it_has_its_turns(
    name: str, victim: str
) -> None:
    cold, cold_places, cold_levels = turns_of(name, 0, victim)
    warm, warm_places, warm_levels = turns_of(name, 50, victim)
    common = min(len(cold), len(warm))
    assert common >= 10
    assert cold[:common] == warm[:common]
    # Cheaper requests of others are cheaper turns of theirs, so fair turns are told by what the victim has had.
    assert cold_levels[:common] == warm_levels[:common]
    if name != "fair":
        assert cold_places == warm_places
