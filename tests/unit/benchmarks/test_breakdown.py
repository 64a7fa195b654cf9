"""Parts of a step add up to it, differences are taken within rounds, and an engine's counts come from its metrics."""

import numpy as np
import pytest

from benchmarks.attention import Case, batch_of
from benchmarks.breakdown import engine_figures
from benchmarks.breakdown_live import read
from benchmarks.breakdown_steps import Round, cases, figures, sampled
from benchmarks.floors import Floor

FLOOR = Floor(linear_ms=2.0, attention_ms=3.0)


def test_parts_add_up_to_the_whole() -> None:
    found = figures([Round(whole=20.0, attention=6.0, alone=12.0, attention_alone=2.0, sampling=1.0)], FLOOR)

    assert found["linear_ms"] == 10.0
    assert found["rest_ms"] == 3.0
    assert found["measured_ms"] == sum(found[f"{part}_ms"] for part in ("linear", "attention", "sampling", "rest"))
    assert found["floor_ms"] == 5.0
    assert found["measured_to_floor"] == 4.0


def test_a_disturbance_that_hits_a_whole_round_hits_no_difference() -> None:
    calm = Round(whole=20.0, attention=6.0, alone=12.0, attention_alone=2.0, sampling=1.0)
    disturbed = [Round(20.0 + by, 6.0, 12.0 + by, 2.0, 1.0) for by in (5.0, 9.0)]

    assert figures([calm, *disturbed], FLOOR)["rest_ms"] == 3.0


def test_only_the_last_row_of_each_sequence_samples() -> None:
    batch = sampled(batch_of(Case("", 0, 0, 2, 7, 3), np.arange(14, dtype=np.int32)))

    assert [(row.row, row.position) for row in batch.samples] == [(2, 7), (5, 7)]
    assert all(row.params.temperature == 0 for row in batch.samples)


def test_every_case_is_there_whatever_the_scale() -> None:
    full, small = list(cases(1.0)), list(cases(0.01))

    assert [case.name for case in full] == [case.name for case in small]
    assert [case.num_slots for case in full[:3]] == [1500, 8 * 1500, 32 * 1500]
    assert full[-1].num_slots == 3500 + 512
    assert all(1 <= case.rows <= case.own for case in small)


def test_the_engines_share_is_of_its_own_steps() -> None:
    found = engine_figures(walls=[10.0, 20.0, 40.0], passes=[9.0, 18.0, 39.0], sampling_ms=1.0)

    assert found["wall_ms"] == 20.0
    assert found["overhead_ms"] == 1.0
    assert found["overhead_share"] == pytest.approx(0.1)
    assert found["overhead_share_with_sampling"] == pytest.approx(0.15)


def test_what_engines_count_is_added_up_over_endpoints_and_labels() -> None:
    def exposition(total: float, count: int) -> str:
        return (
            "# TYPE radixgate_sequence_seconds histogram\n"
            f'radixgate_sequence_seconds_bucket{{tenant="a",le="+Inf"}} {count}\n'
            f'radixgate_sequence_seconds_sum{{tenant="a"}} {total}\n'
            f'radixgate_sequence_seconds_count{{tenant="a"}} {count}\n'
        )

    before = read([exposition(1.0, 2), ""])
    after = read([exposition(4.0, 4), exposition(1.0, 2)])

    assert after.mean_ms_since(before, "request") == 1000.0
    assert (before.counts["ttft"], before.counts["step"]) == (0, 0)
