"""Which admissions Redis has lost."""

from gateway.quota.admissions import Charge, RecentAdmissions


def charge(number: int) -> Charge:
    return Charge("acme", 1000 + number, 1, 10 * number)


def recorded(count: int) -> RecentAdmissions:
    admissions = RecentAdmissions(kept_s=10)
    for number in range(1, count + 1):
        assert admissions.record(number, charge(number), now=float(number)) is None
    return admissions


def test_nothing_is_lost_while_redis_counts_on() -> None:
    admissions = recorded(5)
    assert not admissions.lost(5, admissions.mark())
    assert not admissions.lost(7, admissions.mark())  # answers to two are still on their way


def test_what_redis_has_not_counted_is_lost_and_told_once() -> None:
    admissions = recorded(5)
    assert admissions.lost(3, admissions.mark()) == [charge(4), charge(5)]
    assert not admissions.lost(3, admissions.mark())


def test_a_number_that_comes_again_tells_of_the_one_before() -> None:
    admissions = recorded(5)
    assert admissions.record(4, charge(40), now=6.0) == charge(4)


def test_what_was_admitted_after_the_question_is_not_taken_for_lost() -> None:
    admissions = recorded(5)
    mark = admissions.mark()
    assert admissions.record(4, charge(40), now=6.0) == charge(4)  # Redis has lost 4 and 5, and goes on from 3
    assert admissions.lost(3, mark) == [charge(5)]
    assert admissions.record(5, charge(50), now=6.1) is None
    assert not admissions.lost(5, admissions.mark())


def test_what_is_old_is_forgotten() -> None:
    admissions = recorded(5)
    admissions.forget(now=13.5)
    assert admissions.lost(0, admissions.mark()) == [charge(4), charge(5)]
