"""A breaker does what its few rules say, whatever happens in which order."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.breaker import Breaker, BreakerState

LIMIT, OPEN_S = 3, 10.0
OUTCOMES = ("finished", "failed", "abandoned", "answered")


@dataclass
class Sent:
    permit: int
    era: int  # how often the breaker had opened before


class Model:
    """The rules, the long way round: from the whole history each time."""

    def __init__(self) -> None:
        self.era = 0
        self.opened_at: float | None = None
        self.row = 0  # faults since a request ended well
        self.probe: Sent | None = None

    def state(self, now: float) -> BreakerState:
        if self.opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.opened_at + OPEN_S else BreakerState.HALF_OPEN

    def told(self, sent: Sent, outcome: str, now: float) -> None:
        if sent.era != self.era:
            return
        if outcome == "failed":
            self.row += 1
            if self.opened_at is not None or self.row >= LIMIT:
                self.era, self.opened_at, self.probe = self.era + 1, now, None
            return
        if outcome == "abandoned":
            self.probe = None
            return
        if self.opened_at is not None:
            self.opened_at, self.probe, self.row = None, None, LIMIT - 1
        if outcome == "finished":
            self.row = 0


@given(st.lists(st.tuples(st.sampled_from(["send", "wait", *OUTCOMES]), st.integers(0, 5)), max_size=60))
def test_a_breaker_is_what_its_rules_make_of_its_history(events: list[tuple[str, int]]) -> None:
    breaker, model, now = Breaker(LIMIT, OPEN_S), Model(), 0.0
    under_way: list[Sent] = []
    for event, number in events:
        if event == "wait":
            now += number * 3.0
        elif event == "send":
            if breaker.allows(now):
                sent = Sent(breaker.sent(now), model.era)
                under_way.append(sent)
                if model.state(now) is BreakerState.HALF_OPEN:
                    assert model.probe is None
                    model.probe = sent
        elif under_way:
            sent = under_way[number % len(under_way)]
            if event != "answered":
                under_way.remove(sent)
            if event == "failed":
                breaker.failed(sent.permit, now)
            else:
                getattr(breaker, event)(sent.permit)
            model.told(sent, event, now)
        state = model.state(now)
        assert breaker.state(now) is state
        may = state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and model.probe is None)
        assert breaker.allows(now) is may
        assert (breaker.opens_in_s(now) > 0) is (state is BreakerState.OPEN)


@given(st.lists(st.sampled_from(["abandoned", "finished"]), max_size=40))
def test_without_faults_of_the_worker_it_never_opens(outcomes: list[str]) -> None:
    breaker = Breaker(1, OPEN_S)
    for outcome in outcomes:
        getattr(breaker, outcome)(breaker.sent(0.0))
        assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_opens_with_faults_in_a_row_and_a_good_end_between_them_begins_anew() -> None:
    breaker = Breaker(2, OPEN_S)
    breaker.failed(breaker.sent(0.0), 0.0)
    breaker.finished(breaker.sent(0.0))
    breaker.failed(breaker.sent(0.0), 0.0)
    assert breaker.allows(0.0)
    breaker.failed(breaker.sent(0.0), 0.0)
    assert not breaker.allows(OPEN_S - 0.1)


def test_one_request_goes_to_see_and_no_second_one() -> None:
    breaker = Breaker(1, OPEN_S)
    breaker.failed(breaker.sent(0.0), 0.0)
    assert breaker.allows(OPEN_S)
    probe = breaker.sent(OPEN_S)
    assert not breaker.allows(OPEN_S)
    breaker.abandoned(probe)  # its client has gone: nothing was learnt
    assert breaker.allows(OPEN_S)
    breaker.answered(breaker.sent(OPEN_S))
    assert breaker.state(OPEN_S) is BreakerState.CLOSED


def test_on_probation_one_fault_more_opens_it_and_a_good_end_clears_it() -> None:
    breaker = Breaker(3, OPEN_S)
    for _ in range(3):
        breaker.failed(breaker.sent(0.0), 0.0)
    breaker.answered(breaker.sent(OPEN_S))
    breaker.failed(breaker.sent(OPEN_S), OPEN_S)
    assert breaker.state(OPEN_S) is BreakerState.OPEN
    breaker.finished(breaker.sent(2 * OPEN_S))
    breaker.failed(breaker.sent(2 * OPEN_S), 2 * OPEN_S)
    assert breaker.state(2 * OPEN_S) is BreakerState.CLOSED


def test_what_was_sent_before_it_opened_says_nothing_any_more() -> None:
    breaker = Breaker(1, OPEN_S)
    old, bad = breaker.sent(0.0), breaker.sent(0.0)
    breaker.failed(bad, 0.0)
    breaker.failed(old, OPEN_S - 1)
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN
    breaker.finished(old)
    assert breaker.state(OPEN_S) is BreakerState.HALF_OPEN
