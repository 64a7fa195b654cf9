from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from metrics.labels import LINGER_S
from metrics.worker import WorkerMetrics
from worker.engine.observer import EngineObserver


@dataclass(frozen=True)
class Hit:
    device: int = 0
    host: int = 0
    storage: int = 0


@dataclass(frozen=True)
class Admission:
    prompt_tokens: int
    hit: Hit


@dataclass(frozen=True)
class Load:
    running: int
    waiting: int
    free_slots: int
    evictable_slots: int
    num_slots: int


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a series by their label values, the constant worker label left out."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "worker"): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def value(registry: CollectorRegistry, name: str, labels: Mapping[str, str]) -> float | None:
    return registry.get_sample_value(name, {"worker": "w0", **labels})


def admit(metrics: WorkerMetrics, tenant: str, prompt: int, adapter: str = "", **tiers: int) -> None:
    metrics.admitted(tenant, adapter, Admission(prompt, Hit(**tiers)), queue_wait_s=0.01)


def test_the_engine_accepts_them_as_its_observer() -> None:
    observer: EngineObserver = WorkerMetrics("w0")
    assert observer is not None


def test_prompt_tokens_are_split_by_tier_and_the_rest_is_computed() -> None:
    metrics = WorkerMetrics("w0")
    admit(metrics, "a", 100, device=50, host=20, storage=5)
    assert samples(metrics.registry, "radixgate_prompt_tokens_total") == {("", "a"): 100}
    assert samples(metrics.registry, "radixgate_cached_tokens_total") == {
        ("", "a", "device"): 50,
        ("", "a", "host"): 20,
        ("", "a", "storage"): 5,
    }
    assert samples(metrics.registry, "radixgate_computed_prompt_tokens_total") == {("", "a"): 25}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 99), st.integers(0, 99), st.integers(0, 99))))
def test_cached_and_computed_tokens_always_add_up_to_the_prompt(steps: list[tuple[str, int, int, int]]) -> None:
    metrics = WorkerMetrics("w0", max_tenants=3)
    for tenant, computed, device, host in steps:
        admit(metrics, tenant, computed + device + host, device=device, host=host)
    prompt = samples(metrics.registry, "radixgate_prompt_tokens_total")
    computed_tokens = samples(metrics.registry, "radixgate_computed_prompt_tokens_total")
    cached = samples(metrics.registry, "radixgate_cached_tokens_total")
    for who, tokens in prompt.items():
        assert computed_tokens[who] + sum(cached[*who, tier] for tier in ("device", "host", "storage")) == tokens


def test_what_goes_on_is_counted_apart_and_in_no_other_count() -> None:
    metrics = WorkerMetrics("w0")
    metrics.continued("a", "", Admission(100, Hit(device=50, host=20, storage=5)))
    metrics.continued("a", "", Admission(10, Hit()))
    assert samples(metrics.registry, "radixgate_continued_sequences_total") == {("", "a"): 2}
    assert samples(metrics.registry, "radixgate_continued_tokens_total") == {
        ("", "device", "a"): 50,
        ("", "host", "a"): 20,
        ("", "storage", "a"): 5,
        ("", "computed", "a"): 35,
    }
    for name in ("prompt_tokens_total", "cached_tokens_total", "computed_prompt_tokens_total", "cache_hit_rate"):
        assert samples(metrics.registry, f"radixgate_{name}") == {}


def test_the_hit_rate_is_the_share_of_cached_tokens_over_the_last_minute() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", clock=clock)
    admit(metrics, "a", 100)
    admit(metrics, "a", 100, device=80, host=20)
    admit(metrics, "b", 10)
    assert samples(metrics.registry, "radixgate_cache_hit_rate") == {("", "a"): 0.5, ("", "b"): 0.0}
    clock.now = 30.0
    admit(metrics, "a", 100, device=100)
    clock.now = 75.0
    assert samples(metrics.registry, "radixgate_cache_hit_rate") == {("", "a"): 1.0}


def test_without_traffic_the_hit_rate_has_no_sample_and_comes_back_with_it() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", clock=clock)
    admit(metrics, "a", 100, device=50)
    clock.now = 61.0
    assert samples(metrics.registry, "radixgate_cache_hit_rate") == {}
    admit(metrics, "a", 100, device=25)
    assert samples(metrics.registry, "radixgate_cache_hit_rate") == {("", "a"): 0.25}


def test_a_pause_changes_no_token_count() -> None:
    metrics = WorkerMetrics("w0")
    admit(metrics, "a", 100, device=50)
    before = samples(metrics.registry, "radixgate_cached_tokens_total")
    metrics.paused("a", "")
    assert samples(metrics.registry, "radixgate_cached_tokens_total") == before
    assert value(metrics.registry, "radixgate_pauses_total", {"tenant": "a"}) == 1


def test_adapters_of_a_tenant_are_told_apart() -> None:
    metrics = WorkerMetrics("w0")
    admit(metrics, "a", 10)
    admit(metrics, "a", 20, adapter="poet")
    assert samples(metrics.registry, "radixgate_prompt_tokens_total") == {("", "a"): 10, ("poet", "a"): 20}


def test_ten_thousand_tenants_with_adapters_keep_the_number_of_series_bounded() -> None:
    metrics = WorkerMetrics("w0", max_tenants=5, max_adapters=5)
    for number in range(10_000):
        tenant = f"tenant-{number}"
        admit(metrics, tenant, 1 + number % 97, adapter=f"adapter-{number % 13}", device=number % 97)
        metrics.first_token(tenant, "", 0.1)
        metrics.finished(tenant, "", "stop", 3, 0.5)
    for name in ("radixgate_prompt_tokens_total", "radixgate_cache_hit_rate"):
        assert len(samples(metrics.registry, name)) <= 5 + 5 + 5 + 3
    assert len(samples(metrics.registry, "radixgate_time_to_first_token_seconds_count")) <= 6


def test_the_series_of_a_demoted_tenant_go_and_its_work_counts_under_other() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", max_tenants=1, clock=clock)
    admit(metrics, "small", 10)
    admit(metrics, "large", 100)
    admit(metrics, "small", 10)
    assert samples(metrics.registry, "radixgate_prompt_tokens_total")["", "small"] == 10  # for scrapers
    clock.now = LINGER_S
    admit(metrics, "large", 0)
    admit(metrics, "small", 0)
    assert samples(metrics.registry, "radixgate_prompt_tokens_total") == {("", "large"): 100, ("", "other"): 10}
    assert set(samples(metrics.registry, "radixgate_cache_hit_rate")) <= {("", "large"), ("", "other")}


def test_the_series_of_a_demoted_adapter_go_and_the_tenant_stays() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", max_adapters=1, clock=clock)
    admit(metrics, "a", 10, adapter="small")
    admit(metrics, "a", 100, adapter="large")
    admit(metrics, "a", 10, adapter="small")
    clock.now = LINGER_S
    admit(metrics, "a", 0, adapter="large")
    assert samples(metrics.registry, "radixgate_prompt_tokens_total") == {("large", "a"): 100, ("other", "a"): 10}


def test_slots_by_state_add_up_to_the_pool() -> None:
    metrics = WorkerMetrics("w0")
    metrics.load_changed(Load(running=3, waiting=2, free_slots=100, evictable_slots=40, num_slots=256))
    assert samples(metrics.registry, "radixgate_slots") == {
        ("free", "device"): 100,
        ("evictable", "device"): 40,
        ("in_use", "device"): 116,
    }
    assert value(metrics.registry, "radixgate_running_sequences", {}) == 3
    assert value(metrics.registry, "radixgate_waiting_sequences", {}) == 2


@pytest.mark.parametrize(
    ("tell", "name", "labels"),
    [
        (lambda m: m.first_token("a", "", 0.2), "radixgate_time_to_first_token_seconds_sum", {"tenant": "a"}),
        (lambda m: m.next_token("a", "", 0.2), "radixgate_inter_token_seconds_sum", {}),
        (lambda m: m.finished("a", "", "stop", 5, 0.2), "radixgate_sequence_seconds_sum", {"tenant": "a"}),
        (lambda m: m.stepped(64, 2, 0.2), "radixgate_step_seconds_sum", {}),
    ],
)
def test_durations_are_observed_in_seconds(tell, name: str, labels: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    metrics = WorkerMetrics("w0")
    admit(metrics, "a", 1)
    tell(metrics)
    assert value(metrics.registry, name, labels) == pytest.approx(0.2)


def test_ends_are_counted_by_outcome_and_tokens_generated_with_them() -> None:
    metrics = WorkerMetrics("w0")
    metrics.finished("a", "", "stop", 5, 0.2)
    metrics.finished("a", "", "cancelled", 2, 0.1)
    assert samples(metrics.registry, "radixgate_sequences_finished_total") == {
        ("", "stop", "a"): 1,
        ("", "cancelled", "a"): 1,
    }
    assert samples(metrics.registry, "radixgate_completion_tokens_total") == {("", "a"): 7}


def test_evictions_are_counted_in_tokens() -> None:
    metrics = WorkerMetrics("w0")
    metrics.evicted(7)
    metrics.evicted(5)
    assert value(metrics.registry, "radixgate_evicted_tokens_total", {"tier": "device"}) == 12


def test_two_workers_in_one_process_do_not_share_counts() -> None:
    first, second = WorkerMetrics("w0"), WorkerMetrics("w1")
    admit(first, "a", 10)
    assert samples(second.registry, "radixgate_prompt_tokens_total") == {}


def test_histogram_buckets_grow() -> None:
    metrics = WorkerMetrics("w0")
    admit(metrics, "a", 1)
    bounds = [float(b) for b, _ in samples(metrics.registry, "radixgate_queue_wait_seconds_bucket")]
    assert all(low < high for low, high in pairwise(bounds))
