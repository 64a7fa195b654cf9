"""What should last lasts that long, on average exactly, whatever the timer does."""

import pytest

from worker.simulate.pacing import GRAIN_S, MOST_CREDIT_S, Pacer


class Clock:
    """A clock that stands still but for sleeps, each of which takes `late_s` longer than it should."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 100.0
        self.late_s = late_s
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds + self.late_s


def pacer(clock: Clock) -> Pacer:
    return Pacer(clock, clock.sleep)


def test_what_takes_no_time_is_filled_up() -> None:
    clock = Clock()
    pacer(clock).fill(clock(), 0.5)
    assert clock.sleeps == [pytest.approx(0.5)]


def test_what_work_took_is_not_slept_again() -> None:
    clock = Clock()
    began_at = clock()
    clock.now += 0.3
    pacer(clock).fill(began_at, 0.5)
    assert clock.sleeps == [pytest.approx(0.2)]


def test_work_that_takes_longer_is_not_made_up_for() -> None:
    clock = Clock()
    one = pacer(clock)
    began_at = clock()
    clock.now += 1.0
    one.fill(began_at, 0.5)
    one.fill(clock(), 0.5)
    assert clock.sleeps == [pytest.approx(0.5)]


def test_sleeps_that_are_late_make_the_next_ones_shorter() -> None:
    clock = Clock(late_s=0.004)
    one = pacer(clock)
    began_at = clock()
    for _ in range(1000):
        one.fill(clock(), 0.01)
    assert clock() - began_at == pytest.approx(10.0, abs=0.02)


def test_what_is_shorter_than_a_timer_can_sleep_is_slept_together() -> None:
    clock = Clock(late_s=0.000_06)
    one = pacer(clock)
    began_at = clock()
    for _ in range(10_000):
        one.fill(clock(), GRAIN_S / 20)
    assert clock() - began_at == pytest.approx(500 * GRAIN_S, rel=0.01)
    assert len(clock.sleeps) < 600


def test_a_machine_that_stood_still_is_not_caught_up_with() -> None:
    clock = Clock(late_s=60.0)
    one = pacer(clock)
    one.fill(clock(), 0.01)
    clock.late_s = 0.0
    began_at = clock()
    for _ in range(100):
        one.fill(clock(), 0.01)
    assert clock() - began_at >= 1.0 - MOST_CREDIT_S - GRAIN_S
