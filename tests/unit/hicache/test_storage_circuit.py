"""When a store that was away is asked again."""

from hicache.storage.circuit import Circuit


def test_a_store_that_answers_is_never_left_alone() -> None:
    assert Circuit().wait_s(now=0.0) == 0.0


def test_after_a_failure_the_store_is_left_alone_for_a_second() -> None:
    circuit = Circuit()
    circuit.failed(10.0, "no route")
    assert circuit.wait_s(10.25) == 0.75
    assert circuit.wait_s(11.0) == 0.0
    assert circuit.reason == "no route"


def test_the_pause_doubles_up_to_half_a_minute() -> None:
    circuit = Circuit()
    now, pauses = 0.0, []
    for _ in range(7):
        circuit.failed(now, "away")
        pauses.append(circuit.wait_s(now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_one_success_forgets_all_failures() -> None:
    circuit = Circuit()
    for _ in range(4):
        circuit.failed(0.0, "away")
    circuit.succeeded()
    assert circuit.wait_s(0.0) == 0.0
    circuit.failed(5.0, "away")
    assert circuit.wait_s(5.0) == 1.0
