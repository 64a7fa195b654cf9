"""What a gateway takes a worker's backlog for, beside a worker that computes in turn and reports late."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.backlog import Backlog, Pending

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 50)),
        st.tuples(st.just("arrive"), st.just(0)),  # at the worker, of what was sent
        st.tuples(st.just("compute"), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 1)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("report"), st.just(0)),
    ),
    max_size=40,
)


class World:
    """One gateway's requests, on their way and at a worker, which takes no others."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.on_the_way: list[list[int]] = []  # id and tokens, the first one sent first
        self.waiting: list[list[int]] = []
        self.decoding: list[int] = []
        self.sent = 0
        self.whole: dict[int, int] = {}  # tokens by id, as sent
        self.cancelled_since_report = 0  # tokens, which the last report may still count

    def do(self, kind: str, number: int) -> None:
        if kind == "send":
            self.sent += 1
            self.on_the_way.append([self.sent, number])
            self.whole[self.sent] = number
            self.backlog.sent(self.sent, number, 1)
        elif kind == "arrive" and self.on_the_way:
            self.waiting.append(self.on_the_way.pop(0))
        elif kind == "compute" and self.waiting:
            self._compute(number)
        elif kind == "cancel":
            self._cancel(number)
        elif kind == "finish" and self.decoding:
            finished = self.decoding.pop(0)
            self.report()  # as it comes with the end of a sequence, and does not count it
            self.backlog.ended(finished)
        elif kind == "report":
            self.report()

    def _compute(self, tokens: int) -> None:
        first = self.waiting[0]
        first[1] = max(0, first[1] - tokens)
        if not first[1]:
            self.waiting.pop(0)
            self.decoding.append(first[0])
            self.report()  # tokens come with a report
            self.backlog.began(first[0], 1)

    def _cancel(self, number: int) -> None:
        for place in (self.on_the_way, self.waiting):
            for each in place:
                if each[0] % 2 == number:
                    place.remove(each)
                    self.cancelled_since_report += self.whole[each[0]]
                    self.backlog.cancelled(each[0])
                    return
        if self.decoding:
            self.backlog.cancelled(self.decoding.pop())

    def report(self) -> None:
        tokens = sum(each[1] for each in self.waiting)
        self.backlog.reported(tokens, tokens, len(self.waiting) + len(self.decoding))
        self.cancelled_since_report = 0

    @property
    def tokens(self) -> int:
        return sum(each[1] for each in (*self.on_the_way, *self.waiting))


@settings(max_examples=300)
@given(steps)
def test_right_after_a_report_the_backlog_is_what_there_is_whatever_is_on_its_way(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step in steps:
        world.do(*step)
        world.backlog.check()
    world.report()
    pending = world.backlog.pending()
    assert pending.tokens == world.tokens
    assert pending.unreported_sequences == len(world.on_the_way)


@settings(max_examples=300)
@given(steps)
def test_between_reports_nothing_is_missed_and_nothing_is_counted_twice(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step in steps:
        world.do(*step)
        not_begun = {each[0] for each in (*world.on_the_way, *world.waiting)}
        whole = sum(tokens for sequence_id, tokens in world.whole.items() if sequence_id in not_begun)
        cancelled = world.cancelled_since_report
        assert world.tokens <= world.backlog.pending().tokens <= whole + cancelled


def test_of_a_request_that_is_cancelled_nothing_is_left_to_those_that_are_on_their_way() -> None:
    backlog = Backlog()
    backlog.sent(1, 5, 1)
    backlog.sent(2, 50, 1)
    backlog.reported(pending_tokens=5, own_tokens=5, own_sequences=1)
    backlog.cancelled(1)
    assert backlog.pending().tokens == 50


def test_what_is_sent_after_a_report_is_not_in_it_whatever_it_counts() -> None:
    backlog = Backlog()
    backlog.sent(1, 5, 1)
    backlog.reported(pending_tokens=5, own_tokens=5, own_sequences=2)  # one that was cancelled is still there
    backlog.sent(2, 50, 1)
    assert backlog.pending() == Pending(55, 1)


def test_what_others_have_sent_comes_on_top_of_what_is_known_of_ones_own() -> None:
    backlog = Backlog()
    backlog.sent(1, 100, 1)
    backlog.reported(pending_tokens=700, own_tokens=80, own_sequences=1)
    assert backlog.pending().tokens == 620 + 80
    backlog.sent(2, 50, 1)
    assert backlog.pending().tokens == 620 + 80 + 50


def test_where_the_worker_does_not_know_what_is_cached_yet_the_gateway_does() -> None:
    backlog = Backlog()
    backlog.sent(1, 10, 1)
    backlog.reported(pending_tokens=6000, own_tokens=6000, own_sequences=1)
    assert backlog.pending().tokens == 10


def test_a_worker_that_reports_nothing_has_what_was_sent_until_it_has_begun() -> None:
    backlog = Backlog()
    for sequence_id in (1, 2):
        backlog.sent(sequence_id, 100, 1)
        backlog.reported(0, 0, 0)
    assert (backlog.pending().tokens, backlog.pending().unreported_sequences) == (200, 2)
    backlog.began(1, 1)
    backlog.reported(0, 0, 0)
    assert backlog.pending().tokens == 100
    backlog.ended(1)
    backlog.ended(2)
    backlog.ended(2)
    assert backlog.pending().tokens == 0
    assert len(backlog) == 0
