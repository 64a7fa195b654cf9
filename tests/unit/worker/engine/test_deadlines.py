from tests.unit.worker.engine.harness import make_request
from worker.engine.deadlines import Deadlines
from worker.engine.sequence import Sequence


def sequence(number: int, deadline: float | None) -> Sequence:
    return Sequence(make_request(number, deadline=deadline), number, 0.0, frozenset())


def end(deadlines: Deadlines, each: Sequence) -> None:
    each.ended = True
    deadlines.ended(each)


def test_those_out_of_time_come_earliest_first_and_once() -> None:
    deadlines = Deadlines()
    for number, deadline in enumerate((3.0, 1.0, None, 2.0, 9.0)):
        deadlines.watch(sequence(number, deadline))

    expired = []
    for each in deadlines.expired(3.0):
        expired.append(each.order)
        end(deadlines, each)

    assert expired == [1, 3, 0]
    assert deadlines.earliest() == 9.0


def test_ended_sequences_do_not_stay_until_their_deadline() -> None:
    """One that lives has the earliest deadline, so nothing behind it ever comes up."""
    deadlines = Deadlines()
    deadlines.watch(sequence(0, 10.0))
    for number in range(1, 2001):
        each = sequence(number, 86_400.0)
        deadlines.watch(each)
        end(deadlines, each)

    assert len(deadlines) < 200
    assert deadlines.earliest() == 10.0
