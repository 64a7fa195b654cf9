"""Figures in pages are those of the files, and places without a file say how to get one."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.document import PAGES, PLACES, RESULTS, UnknownPlaceError, filled
from benchmarks.document_tables import conditions, start, workloads
from benchmarks.scaling_model import CELL, ROOM, Assumed, UnitCosts, needs

MACHINE = {
    "date": "2026-11-29", "processor": "AMD EPYC", "cores": 2, "memory_gib": 23.5, "python": "3.11.7",
    "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
}  # fmt: skip
SIDE = {"wall_s": 2.0, "ttft_mean_s": 0.5, "itl_mean_ms": 25.0, "cached_tokens": 900, "peak_rss_mb": 2000.0}
SERVED: dict[str, Any] = {
    "ready_after_s": 7.0,
    "first_answer_after_s": 8.0,
    "workloads": {
        "w1": {
            **SIDE,
            "prompt_tokens": 1000,
            "peer": {**SIDE, "wall_s": 4.0, "peak_rss_mb": 6000.0},
            "ratio": {"wall_s": 0.5, "ttft_mean_s": 1.0, "itl_mean_ms": 1.0},
        }
    },
    "peer": {"ready_after_s": 70.0, "first_answer_after_s": 80.0},
    "ratio": {"ready_after_s": 0.1, "first_answer_after_s": 0.1},
    "machine": MACHINE,
    "settings": {"scale": 1.0},
    "load_average_before": 0.25,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_figures_of_the_files(page: Path) -> None:
    text = page.read_text()

    assert filled(text, RESULTS) == text, "run python -m benchmarks.document"


def test_pages_have_a_place_for_all_that_is_measured() -> None:
    text = "".join(page.read_text() for page in PAGES)

    assert [name for name in PLACES if f"<!-- figures: {name} -->" not in text] == []
    assert text.count("<!-- figures: ") == text.count("<!-- end -->") == len(PLACES)


def test_what_more_workers_need_is_more_of_everything_and_hearing_is_bounded_by_a_cell() -> None:
    costs = UnitCosts(
        request=0.005, output_token=2e-5, link=0.003, page=4e-6, page_bytes=300,
        redis_request=2e-4, redis_renewal=1e-4, redis_look=5e-5,
    )  # fmt: skip
    one, many, more = (needs(workers, costs, Assumed()) for workers in (1, CELL, 2 * CELL))

    assert one.gateways == 1
    assert many.hearing == pytest.approx(CELL * one.hearing)
    assert many.fleets == 1
    assert (more.fleets, more.gateways) == (2, 2 * many.gateways)
    assert more.hearing == many.hearing
    assert more.hearing_undivided == pytest.approx(2 * many.hearing)
    assert more.redis == pytest.approx(2 * many.redis)
    # Each gateway keeps to its room.
    requests = many.requests_per_s * (costs.request + (Assumed().output_tokens - 1) * costs.output_token)
    assert requests / many.gateways + many.hearing <= ROOM


def test_places_are_filled_anew_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    text = "before\n<!-- figures: workloads -->\nold\n<!-- end -->\nafter\n"
    missing = filled(text, tmp_path)
    (tmp_path / "workloads.json").write_text(json.dumps(SERVED))

    found = filled(missing, tmp_path)

    assert "TBD: `python -m benchmarks.serve" in missing
    assert "old" not in missing
    assert found.startswith("before\n<!-- figures: workloads -->\n| workload |")
    assert found.endswith("<!-- end -->\nafter\n")
    assert "TBD" not in found
    assert filled(found, tmp_path) == found


def test_a_place_that_nothing_is_known_of_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownPlaceError, match="'weather'"):
        filled("<!-- figures: weather -->\n<!-- end -->", tmp_path)


def test_a_cell_is_ours_the_peers_and_the_ratio() -> None:
    assert "| 2.00 / 4.00 (0.50) |" in workloads(SERVED)
    assert "| 900 / 900 of 1,000 |" in workloads(SERVED)
    assert "| 7.0 / 70.0 (0.10) |" in start(SERVED)
    assert "| 2,000 / 6,000 (0.33) |" in start(SERVED)


def test_without_a_peer_a_cell_is_ours() -> None:
    alone = {**SERVED, "peer": {}, "ratio": {}}
    alone["workloads"] = {"w1": {**SIDE, "prompt_tokens": 1000}}

    assert "| 2.00 | 0.50 | 25.0 | 900 of 1,000 |" in workloads(alone)
    assert "| 7.0 |" in start(alone)


def test_figures_say_what_they_were_measured_on() -> None:
    assert conditions(SERVED) == (
        "*2026-11-29; AMD EPYC, 2 cores, 23.5 GiB; Python 3.11.7, torch 2.13.0, transformers 5.24.0; "
        "load average before it 0.25*"
    )
    assert "no figures to quote" in conditions({**SERVED, "settings": {"scale": 0.1}})
