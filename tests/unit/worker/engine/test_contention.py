"""What those who wait may do to others, and others to them, is bounded."""

from tests.unit.worker.engine.waiting_sequences import finish, waiting
from worker.engine.contention import MAX_PAUSES, Contention


def test_only_so_many_pause_for_one_that_waits() -> None:
    contention = Contention()
    sequence, other = waiting(0), waiting(1)
    for _ in range(MAX_PAUSES):
        assert contention.may_pause_others(sequence)
        contention.paused_other(sequence)
    assert not contention.may_pause_others(sequence)
    assert contention.may_pause_others(other)


def test_nobody_pauses_for_one_that_has_run_before() -> None:
    contention = Contention()
    sequence = waiting(0)
    finish(sequence, cached_tokens=0, num_outputs=1)
    assert not contention.may_pause_others(sequence)


def test_one_without_room_is_overtaken_by_as_many_slots_as_it_needs() -> None:
    contention = Contention()
    large, small = waiting(0), waiting(1)
    contention.blocked(large, 100)
    assert contention.may_overtake(small, [large], 60)
    contention.overtook([large], 60)
    contention.blocked(large, 100)  # and again in the next step, which gives it no new patience
    assert not contention.may_overtake(small, [large], 60)
    assert contention.may_overtake(small, [large], 40)


def test_nobody_overtakes_a_higher_priority() -> None:
    contention = Contention()
    large, small = waiting(0, priority=1), waiting(1, priority=0)
    contention.blocked(large, 100)
    assert not contention.may_overtake(small, [large], 1)


def test_who_does_not_wait_any_more_is_forgotten() -> None:
    contention = Contention()
    sequence = waiting(0)
    contention.paused_other(sequence)
    contention.blocked(sequence, 10)
    contention.forget(sequence)
    contention.forget(sequence)
    contention.check(0)
