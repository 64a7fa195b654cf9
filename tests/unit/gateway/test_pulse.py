"""Signs of life of a worker: which silence means something, and when nothing moves."""

import pytest

from gateway.dispatch.pulse import Pulse, Sign
from radixgate.v1 import worker_pb2

NEWS = worker_pb2.SequenceOutput(sequence_id=1, token_ids=[1])


def report(*outputs: worker_pb2.SequenceOutput, **load: float) -> worker_pb2.ConnectResponse:
    message = worker_pb2.ConnectResponse(outputs=outputs)
    message.load.SetInParent()
    for name, value in load.items():
        setattr(message.load, name, value)
    return message


def test_a_worker_that_reports_and_then_says_nothing_is_silent() -> None:
    pulse = Pulse(5.0, 60.0)
    pulse.heard(report())
    assert pulse.passed(5.0, 0) is Sign.ALIVE
    assert pulse.passed(0.1, 0) is Sign.SILENT


def test_anything_that_it_says_breaks_the_silence() -> None:
    pulse = Pulse(5.0, 60.0)
    pulse.heard(report())
    for _ in range(3):
        assert pulse.passed(4.0, 1) is Sign.ALIVE
        pulse.heard(worker_pb2.ConnectResponse(outputs=[NEWS]))


def test_one_that_never_reported_by_itself_may_say_nothing_for_ever() -> None:
    pulse = Pulse(5.0, 60.0)
    pulse.heard(worker_pb2.ConnectResponse())
    pulse.heard(report(NEWS))  # with a step's news, as workers did before they reported
    assert pulse.passed(1000.0, 0) is Sign.ALIVE
    pulse.heard(report())
    assert pulse.passed(6.0, 0) is Sign.SILENT


@pytest.mark.parametrize(("stalled_s", "stalled"), [(0.0, False), (60.0, False), (60.5, True)])
def test_a_worker_that_says_that_nothing_moves_has_stalled(stalled_s: float, stalled: bool) -> None:
    pulse = Pulse(5.0, 60.0)
    pulse.heard(report(stalled_s=stalled_s))
    assert pulse.stalled is stalled
    assert pulse.closed is stalled
    assert pulse.passed(1.0, 0) is (Sign.STALLED if stalled else Sign.ALIVE)


def test_it_has_no_longer_once_it_says_otherwise() -> None:
    pulse = Pulse(5.0, 60.0)
    for stalled_s in (100.0, 0.0):
        pulse.heard(report(stalled_s=stalled_s))
    assert not pulse.closed
    assert pulse.passed(1.0, 0) is Sign.ALIVE


def test_streams_that_had_tokens_and_get_no_more_show_a_stall_that_nobody_reports() -> None:
    pulse = Pulse(100.0, 60.0)
    pulse.heard(report(NEWS, running_sequences=2))
    for _ in range(6):
        assert pulse.passed(10.0, 1) is Sign.ALIVE
        pulse.heard(report(running_sequences=2))
    assert pulse.passed(1.0, 1) is Sign.STALLED


def test_who_waits_for_the_first_token_may_wait() -> None:
    pulse = Pulse(100.0, 60.0)
    for _ in range(20):
        pulse.heard(report(running_sequences=2))
        assert pulse.passed(10.0, 0) is Sign.ALIVE


def test_nothing_is_due_while_nothing_runs() -> None:
    pulse = Pulse(100.0, 60.0)
    for _ in range(20):
        pulse.heard(report(running_sequences=0))
        assert pulse.passed(10.0, 1) is Sign.ALIVE


def test_one_that_drains_gets_nothing_and_has_not_stalled() -> None:
    pulse = Pulse(5.0, 60.0)
    pulse.heard(report(draining=True))
    assert pulse.closed
    assert not pulse.stalled
