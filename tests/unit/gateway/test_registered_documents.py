"""What reads as a registration, and what does not: whoever can write there is not believed blindly."""

import json

import pytest

from gateway.dispatch.registrations import RegisteredWorker, is_reachable, read_registration


def text(**changes: object) -> str:
    return json.dumps({"worker_id": "one", "address": "10.0.0.1:50061", "incarnation": "a", "model": "m", **changes})


def test_a_registration_is_read() -> None:
    assert read_registration("one", text()) == RegisteredWorker("one", "10.0.0.1:50061", "a", "m")


def test_what_later_versions_say_beyond_it_is_no_fault() -> None:
    assert read_registration("one", text(colour={"red": [1, 2]})).worker_id == "one"


@pytest.mark.parametrize(
    ("worker_id", "document", "told"),
    [
        ("one", "", "no document"),
        ("one", "{", "no registration"),
        ("one", "[]", "no registration"),
        ("one", "null", "no registration"),
        ("one", "5", "no registration"),
        ("one", '"text"', "no registration"),
        ("one", text(adapters=5), "no registration"),
        ("one", text(adapters=[["a"]]), "no registration"),
        ("one", text(start_time="yesterday"), "no registration"),
        ("one", text(context_length=1e400), "no registration"),
        ("one", "[" * 5_000, "no registration"),
        ("one", text(context_length="many"), "no registration"),
        ("one", text(worker_id="two"), "names another worker, 'two'"),
        ("", text(worker_id=""), "the id is no text"),
        ("a\nb", text(worker_id="a\nb"), "the id is no text"),
        ("x" * 254, text(worker_id="x" * 254), "the id is no text"),
        ("one", text(address=""), "no HOST:PORT"),
        ("one", text(address="unix:/run/redis.sock"), "no HOST:PORT"),
    ],
)
def test_what_is_no_registration_is_refused_with_the_reason(worker_id: str, document: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_registration(worker_id, document)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1:1", "worker-0.workers.default.svc:50061", "localhost:65535", "[::1]:50061", "[fe80::1%eth0]:1", "a_b:1"],
)
def test_one_host_and_a_port_can_be_reached(address: str) -> None:
    assert is_reachable(address)


@pytest.mark.parametrize(
    "address",
    [
        "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1 ", "ho st:1", "0.0.0.0:1", "[::]:1",
        "dns:///host:1", "unix:/a:1", "ipv4:1.2.3.4:5,6.7.8.9:1", "a,b:1", "user@host:1", "host\n:1", "::1:1",
        "x" * 260 + ":1", "-host:1",
    ],
)  # fmt: skip
def test_what_grpc_could_take_for_something_else_cannot(address: str) -> None:
    assert not is_reachable(address)
