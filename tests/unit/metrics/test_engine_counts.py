"""What an engine tells is counted as users expect: the faults of hit rates that others' users report cannot happen."""

import random

import pytest

from metrics.worker import WorkerMetrics
from tests.unit.metrics.test_worker_metrics import Clock, samples
from tests.unit.worker.engine.harness import Rig, make_request
from worker.config import EngineConfig

TIGHT = EngineConfig(max_running=6, max_chunk_tokens=7, max_step_tokens=32, headroom_tokens=1)


def counted(metrics: WorkerMetrics, name: str) -> float:
    return sum(samples(metrics.registry, name).values())


def served(metrics: WorkerMetrics, prompts: list[list[int]], num_slots: int, new_tokens: int = 12) -> None:
    rig = Rig(num_slots, config=TIGHT, observer=metrics)
    for number, tokens in enumerate(prompts):
        rig.submit(make_request(number, tokens, max_new_tokens=new_tokens))
    rig.run()


def random_prompts(num: int, length: int) -> list[list[int]]:
    """Prompts of which no two begin alike."""
    chooser = random.Random(3)
    return [[number, *(chooser.randrange(200) for _ in range(length - 1))] for number in range(num)]


def test_random_prompts_hit_nothing_however_often_they_pause_and_however_they_are_cut() -> None:
    metrics = WorkerMetrics("w0")
    prompts = random_prompts(24, 30)
    served(metrics, prompts, num_slots=150)
    assert counted(metrics, "radixgate_pauses_total") > 3
    assert counted(metrics, "radixgate_prompt_tokens_total") == sum(len(each) for each in prompts)
    assert counted(metrics, "radixgate_cached_tokens_total") == 0
    assert counted(metrics, "radixgate_computed_prompt_tokens_total") == 24 * 30


def test_chunks_of_a_prompt_are_no_hits_of_it() -> None:
    metrics = WorkerMetrics("w0")
    served(metrics, random_prompts(1, 100), num_slots=1000)
    assert counted(metrics, "radixgate_step_tokens_count") > 100 / TIGHT.max_chunk_tokens
    assert counted(metrics, "radixgate_cached_tokens_total") == 0


def test_pauses_make_no_request_count_twice_also_where_there_are_hits() -> None:
    metrics = WorkerMetrics("w0")
    shared = list(range(20))
    prompts = [[*shared, number, number + 1] for number in range(24)]
    served(metrics, prompts, num_slots=80, new_tokens=30)
    assert counted(metrics, "radixgate_pauses_total") > 3
    prompt = counted(metrics, "radixgate_prompt_tokens_total")
    assert prompt == 24 * 22
    assert 0 < counted(metrics, "radixgate_cached_tokens_total") <= 24 * 20
    assert counted(metrics, "radixgate_queue_wait_seconds_count") == 24


def test_the_hit_rate_is_not_that_of_the_last_step() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", clock=clock)
    prompt = random_prompts(1, 40)[0]
    rig = Rig(1000, config=TIGHT, observer=metrics)
    for number in range(4):
        rig.submit(make_request(number, prompt, max_new_tokens=1))
        rig.run()
    for _ in range(100):
        clock.now += 0.5
        rig.engine.idle(clock.now)  # steps in which nothing is admitted
    rate = samples(metrics.registry, "radixgate_cache_hit_rate")
    assert list(rate.values()) == [pytest.approx(3 * 39 / 160)]


def test_workers_do_not_overwrite_each_other() -> None:
    first, second = WorkerMetrics("w0"), WorkerMetrics("w1")
    served(first, random_prompts(2, 30), num_slots=500)
    served(second, random_prompts(3, 30), num_slots=500)
    workers = {
        (sample.labels["worker"], sample.value)
        for metrics in (first, second)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "radixgate_prompt_tokens_total"
    }
    assert workers == {("w0", 60.0), ("w1", 90.0)}
