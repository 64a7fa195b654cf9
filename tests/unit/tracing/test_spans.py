"""Moments of a process as time of day."""

import time

import pytest

from tracing.spans import Epoch


def test_whoever_sets_the_clock_moves_no_span_of_a_request_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, at = Epoch(), time.monotonic()
    before, time_of_day = epoch.ns(at), time.time_ns()
    assert abs(before - time_of_day) < 60e9
    monkeypatch.setattr(time, "time_ns", lambda: time_of_day - 3_600 * 10**9)
    assert epoch.ns(at) == before
    assert epoch.ns(at + 1.0) - before == pytest.approx(1e9, abs=1_000)
