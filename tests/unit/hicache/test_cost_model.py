import random

import pytest

from hicache.copies.cost import LoadCostConfig, LoadCostModel


def model(threshold: int = 16, trusted_s: float = 10.0) -> LoadCostModel:
    return LoadCostModel(LoadCostConfig(load_back_threshold=threshold, trusted_s=trusted_s))


def taught(*, load_tokens_per_s: float, prefill_tokens_per_s: float, latency_s: float = 0.0) -> LoadCostModel:
    """A model that has seen loads and prefills of several lengths at time 0."""
    made = model()
    for num_tokens in (32, 256, 2_048, 512, 64):
        made.observe_load(num_tokens, latency_s + num_tokens / load_tokens_per_s, now=0.0)
        made.observe_prefill(num_tokens, num_tokens / prefill_tokens_per_s, now=0.0)
    return made


def test_without_measurements_everything_from_the_threshold_on_is_loaded() -> None:
    fresh = model(threshold=16)
    assert not fresh.worth_loading(15, now=0.0)
    assert fresh.worth_loading(16, now=0.0)
    assert fresh.load_back_threshold == 16
    assert (fresh.load_tokens_per_s, fresh.prefill_tokens_per_s, fresh.load_latency_s) == (None, None, 0.0)


def test_one_speed_without_the_other_decides_nothing() -> None:
    only_loads, only_prefills = model(), model()
    only_loads.observe_load(100, 1000.0, now=0.0)
    only_prefills.observe_prefill(100, 1e-6, now=0.0)
    assert only_loads.worth_loading(100, now=0.0)
    assert only_prefills.worth_loading(100, now=0.0)


def test_the_faster_way_is_taken() -> None:
    assert taught(load_tokens_per_s=400_000, prefill_tokens_per_s=2_000).worth_loading(1_000, now=1.0)
    assert not taught(load_tokens_per_s=1_000, prefill_tokens_per_s=2_000).worth_loading(1_000, now=1.0)


def test_speeds_and_latency_are_those_that_were_measured() -> None:
    learnt = taught(load_tokens_per_s=50_000, prefill_tokens_per_s=2_000, latency_s=0.004)
    assert learnt.load_tokens_per_s == pytest.approx(50_000, rel=0.01)
    assert learnt.load_latency_s == pytest.approx(0.004, rel=0.01)
    assert learnt.prefill_tokens_per_s == pytest.approx(2_000, rel=0.01)


def test_latency_makes_short_loads_not_worth_it() -> None:
    learnt = taught(load_tokens_per_s=50_000, prefill_tokens_per_s=2_000, latency_s=0.1)
    assert not learnt.worth_loading(50, now=1.0)
    assert learnt.worth_loading(1_000, now=1.0)


def test_below_the_threshold_nothing_is_loaded_however_fast() -> None:
    assert not taught(load_tokens_per_s=1e9, prefill_tokens_per_s=1.0).worth_loading(15, now=100.0)


def test_one_stall_does_not_turn_the_decision() -> None:
    learnt = taught(load_tokens_per_s=400_000, prefill_tokens_per_s=2_000)
    learnt.observe_load(1_000, 60.0, now=1.0)
    assert learnt.worth_loading(1_000, now=1.0)


def test_a_lasting_change_of_speed_is_learnt() -> None:
    learnt = taught(load_tokens_per_s=400_000, prefill_tokens_per_s=2_000)
    for _ in range(10):
        learnt.observe_load(1_000, 2.0, now=1.0)
    assert not learnt.worth_loading(1_000, now=1.0)


def test_an_estimate_against_loading_is_doubted_after_a_while_one_load_at_a_time() -> None:
    slow = taught(load_tokens_per_s=1_000, prefill_tokens_per_s=2_000)
    assert not slow.worth_loading(1_000, now=9.9)
    assert slow.worth_loading(1_000, now=10.0)
    assert not slow.worth_loading(1_000, now=10.1)
    assert slow.worth_loading(1_000, now=20.0)


def test_a_doubt_that_is_confirmed_is_put_off_again() -> None:
    slow = taught(load_tokens_per_s=1_000, prefill_tokens_per_s=2_000)
    assert slow.worth_loading(1_000, now=10.0)
    slow.observe_load(1_000, 1.0, now=11.0)
    assert not slow.worth_loading(1_000, now=20.9)
    assert slow.worth_loading(1_000, now=21.0)


def test_many_slow_outliers_are_forgotten_within_a_minute_of_tries() -> None:
    learnt = taught(load_tokens_per_s=400_000, prefill_tokens_per_s=2_000)
    for _ in range(50):
        learnt.observe_load(1_000, 30.0, now=0.0)
    now, refused = 0.0, 0
    while now < 60.0:
        now += 0.5
        if learnt.worth_loading(1_000, now=now):
            learnt.observe_load(1_000, 1_000 / 400_000, now=now)
            refused = 0
        else:
            refused += 1
    assert refused == 0
    assert learnt.worth_loading(1_000, now=now)


@pytest.mark.parametrize("seed", range(5))
def test_noise_leaves_the_estimate_near_the_truth(seed: int) -> None:
    rng = random.Random(seed)
    noisy = model()
    for step in range(200):
        num_tokens = rng.choice([16, 64, 256, 1_024, 4_096])
        noisy.observe_load(num_tokens, (0.001 + num_tokens / 100_000) * rng.uniform(0.8, 1.25), now=step * 0.1)
    assert noisy.load_tokens_per_s == pytest.approx(100_000, rel=0.35)
    assert 0.0 <= noisy.load_latency_s < 0.02


def test_measurements_of_nothing_or_of_no_time_are_harmless() -> None:
    odd = model()
    odd.observe_load(0, 1.0, now=0.0)
    odd.observe_prefill(0, 1.0, now=0.0)
    assert odd.load_tokens_per_s is None
    odd.observe_load(100, 0.0, now=0.0)
    odd.observe_prefill(100, 0.0, now=0.0)
    assert odd.worth_loading(100, now=0.0)


@pytest.mark.parametrize(("field", "value"), [("load_back_threshold", 0), ("trusted_s", 0.0)])
def test_a_setting_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        LoadCostConfig(**{field: value})  # type: ignore[arg-type]
