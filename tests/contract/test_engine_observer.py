"""Whoever observes an engine hears each event once; what WorkerMetrics shows are the sums over the outputs."""

from collections.abc import Callable

import pytest

from metrics.worker import WorkerMetrics
from tests.unit.worker.engine.harness import Recorder, Rig, make_request, prompt
from worker.config import EngineConfig
from worker.engine import EngineObserver, FinishReason, NullObserver

NUM_REQUESTS = 12


def busy_rig(observer: EngineObserver) -> Rig:
    """Return a rig that has met hits, pauses, evictions, a refusal, a cancellation and a failed pass."""
    rig = Rig(
        num_slots=160,
        config=EngineConfig(max_running=6, max_chunk_tokens=16, max_step_tokens=48, headroom_tokens=1),
        observer=observer,
    )
    rig.submit(make_request(NUM_REQUESTS, []))
    for number in range(NUM_REQUESTS):
        rig.submit(make_request(number, [*prompt(20, number % 3), *prompt(5, number)], max_new_tokens=40))
    for _ in range(30):
        rig.step()
    rig.engine.cancel((0, NUM_REQUESTS - 1), rig.now)
    rig.run()
    rig.submit(make_request(NUM_REQUESTS + 1, prompt(30, 9)))
    rig.executor.break_in = {rig.executor.num_runs + 1}
    rig.run()
    return rig


@pytest.mark.parametrize("make", [NullObserver, Recorder, lambda: WorkerMetrics("w")])
def test_an_observer_changes_nothing_and_survives_everything(make: Callable[[], EngineObserver]) -> None:
    rig = busy_rig(make())
    assert all(rig.finish(number) is FinishReason.LENGTH for number in range(NUM_REQUESTS - 1))
    rig.assert_nothing_is_held()


def test_events_come_once_each() -> None:
    observer = Recorder()
    rig = busy_rig(observer)
    admissions = [output.admission for outputs in rig.outputs.values() for output in outputs if output.admission]
    num_tokens = sum(len(output.token_ids) for outputs in rig.outputs.values() for output in outputs)
    assert observer.admissions == admissions
    assert observer.num_pauses > 0
    assert observer.num_evicted == rig.cache.stats().evicted_tokens > 0
    assert len(observer.ttfts) + len(observer.gaps) == num_tokens
    assert len(observer.outcomes) == NUM_REQUESTS + 2
    assert len(observer.steps) == rig.executor.num_runs


def test_the_counters_are_the_sums_over_the_outputs() -> None:
    metrics = WorkerMetrics("w")
    rig = busy_rig(metrics)
    outputs = [output for outputs in rig.outputs.values() for output in outputs]
    admissions = [output.admission for output in outputs if output.admission]
    who = {"worker": "w", "tenant": "a", "adapter": ""}

    def counted(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**who, **labels})

    cached = sum(admission.hit.device for admission in admissions)
    assert cached > 0
    assert counted("radixgate_cached_tokens_total", tier="device") == cached
    assert counted("radixgate_prompt_tokens_total") == sum(admission.prompt_tokens for admission in admissions)
    assert counted("radixgate_completion_tokens_total") == sum(len(output.token_ids) for output in outputs)
    assert counted("radixgate_sequences_finished_total", outcome="length") == NUM_REQUESTS - 1
    for outcome in ("cancelled", "invalid_argument", "internal"):
        assert counted("radixgate_sequences_finished_total", outcome=outcome) == 1
