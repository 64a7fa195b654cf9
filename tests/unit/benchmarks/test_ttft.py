"""The model of the time to the first token finds what a made-up server costs, and says how far it is off."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ttft_report
from benchmarks.load import Arrival, Timing
from benchmarks.ttft import Point, measure, report_of
from benchmarks.ttft_model import TtftModel, Work, deviations, fit, non_negative_least_squares
from benchmarks.workloads import TokenText, Turn

TRUTH = TtftModel(fixed_s=0.01, per_token_s=2e-4, per_pair_s=3e-8)
WORKS = [Work(length, round(length * ratio)) for length in (1000, 2000, 4000) for ratio in (0, 0.5, 0.99)]
DOCUMENT = tuple(range(40_000))


class CachingServer:
    """Costs what the model says, beside a prefix cache of everything it was sent."""

    def __init__(self, model: TtftModel) -> None:
        self._model = model
        self._seen: list[tuple[int, ...]] = []

    async def answer(self, turn: Turn) -> Timing:
        prompt = turn.token_ids
        cached = min(len(prompt) - 1, max((_common(prompt, other) for other in self._seen), default=0))
        self._seen.append(prompt)
        ttft_s = self._model.ttft_s(Work(len(prompt), cached))
        return Timing(5.0, (Arrival(5.0 + ttft_s, 1),), (7,), len(prompt), cached)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_pair_is_a_computed_token_and_a_position_it_sees() -> None:
    work = Work(prompt_tokens=5, cached_tokens=2)

    assert work.computed == 3
    assert work.pairs == 3 + 4 + 5
    assert Work(5, 0).pairs == 1 + 2 + 3 + 4 + 5


def test_the_fit_finds_the_parts_that_made_the_times() -> None:
    found = fit(WORKS, [TRUTH.ttft_s(work) for work in WORKS])

    assert found.fixed_s == pytest.approx(TRUTH.fixed_s, rel=1e-6)
    assert found.per_token_s == pytest.approx(TRUTH.per_token_s, rel=1e-6)
    assert found.per_pair_s == pytest.approx(TRUTH.per_pair_s, rel=1e-6)


def test_the_fit_is_relative_so_short_times_count_as_much_as_long_ones() -> None:
    times = [TRUTH.ttft_s(work) * (1.2 if index % 2 else 0.8) for index, work in enumerate(WORKS)]

    off = deviations(fit(WORKS, times), WORKS, times)

    assert max(map(abs, off)) < 0.35
    short = min(range(len(WORKS)), key=lambda index: times[index])
    assert abs(off[short]) < 0.3


def test_no_part_is_negative_even_where_that_would_fit_better() -> None:
    times = [0.5 - 1e-4 * work.computed for work in WORKS]

    found = fit(WORKS, times)

    assert min(found.fixed_s, found.per_token_s, found.per_pair_s) >= 0
    assert max(map(abs, deviations(found, WORKS, times))) > 0.1


def test_two_points_are_too_few_for_three_parts() -> None:
    with pytest.raises(ValueError, match="2 points"):
        fit(WORKS[:2], [1.0, 2.0])


def test_non_negative_least_squares_agrees_with_a_search() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        matrix, target = random.normal(size=(6, 3)), random.normal(size=6)
        found = non_negative_least_squares(matrix, target)
        error = np.linalg.norm(matrix @ found - target)
        guesses = np.abs(random.normal(size=(500, 3))) * (random.random(size=(500, 3)) < 0.6)
        nearby = np.maximum(found + 0.01 * random.normal(size=(500, 3)), 0)
        assert (found >= 0).all()
        for guess in np.concatenate([guesses, nearby]):
            assert error <= np.linalg.norm(matrix @ guess - target) + 1e-9


def test_a_server_that_costs_what_the_model_says_is_found_out() -> None:
    texts = [TokenText(DOCUMENT, seed) for seed in range(2)]

    timings = asyncio.run(measure(CachingServer(TRUTH), "acme", (200, 400), (0.0, 0.5, 0.9), texts))
    report = report_of(timings)

    assert set(timings) == {Point(length, ratio) for length in (200, 400) for ratio in (0.0, 0.5, 0.9)}
    assert all(len(found) == len(texts) for found in timings.values())
    assert [point["cached_tokens"] for point in report["points"]] == [0, 100, 180, 0, 200, 360]
    assert report["max_deviation"] < 1e-6
    assert report["model"]["per_token_s"] == pytest.approx(TRUTH.per_token_s)


def test_a_server_that_forgets_is_not_described_by_what_was_asked_of_it() -> None:
    """Whatever was primed, what counts is what the server says was cached."""

    class Forgetful(CachingServer):
        async def answer(self, turn: Turn) -> Timing:
            self._seen.clear()
            return await super().answer(turn)

    timings = asyncio.run(measure(Forgetful(TRUTH), "acme", (200, 400, 800), (0.5,), [TokenText(DOCUMENT, 0)]))

    assert [point["cached_tokens"] for point in report_of(timings)["points"]] == [0, 0, 0]


def test_the_picture_is_one(tmp_path: Path) -> None:
    timings = asyncio.run(measure(CachingServer(TRUTH), "acme", (100, 200), (0.0, 0.5), [TokenText(DOCUMENT, 0)]))

    ttft_report.draw(report_of(timings), tmp_path / "ttft.png")

    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")
