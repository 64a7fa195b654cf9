"""How long tokens wait for further ones: not at all when few streams run, and never longer than readers bear."""

import pytest

from gateway.dispatch.pace import Pace


@pytest.mark.parametrize(
    ("num_streams", "window_s"), [(0, 0.004), (1, 0.004), (12, 0.004), (30, 0.01), (150, 0.05), (300, 0.1), (9000, 0.1)]
)
def test_the_more_streams_the_longer_each_collects(num_streams: int, window_s: float) -> None:
    pace = Pace(0.004, 0.1, 3_000.0)
    for _ in range(num_streams):
        pace.opened()
    assert pace.window_s == pytest.approx(window_s)


def test_streams_that_end_are_forgotten() -> None:
    pace = Pace(0.004, 0.1, 3_000.0)
    for _ in range(300):
        pace.opened()
    for _ in range(299):
        pace.closed()
    assert (pace.num_streams, pace.window_s) == (1, 0.004)


def test_whoever_asks_for_a_longer_window_gets_it() -> None:
    assert Pace(0.5, 0.1, 3_000.0).window_s == 0.5
