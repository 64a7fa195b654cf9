import re
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from cli.config import Config, config_from, with_free_ports
from cli.listeners import AddressTakenError, check_listeners
from cli.main import main
from metrics.listening import why_not_free


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def config(**sections: dict[str, object]) -> Config:
    tree: dict[str, object] = dict(sections)
    with_free_ports(tree)
    return config_from(tree)


def test_every_taken_address_is_named_with_its_setting(taken_port: int) -> None:
    address = f"127.0.0.1:{taken_port}"
    with pytest.raises(AddressTakenError) as caught:
        check_listeners(config(worker={"listen": address}, redis={"port": taken_port}))
    first, second, _ = str(caught.value).splitlines()
    assert first == f"cannot listen on {address} (worker.listen): address already in use"
    assert second == f"cannot listen on {address} (redis.port): address already in use"


def test_a_taken_address_of_a_further_worker_is_named_with_that_worker(taken_port: int) -> None:
    other = config(worker={"worker_id": "worker-1", "metrics_listen": f"127.0.0.1:{taken_port}"})
    with pytest.raises(AddressTakenError, match=rf"127\.0\.0\.1:{taken_port} \(worker\.metrics_listen of worker-1\)"):
        check_listeners(config(), [other])


def test_the_port_of_our_own_redis_does_not_matter_with_another_one(taken_port: int) -> None:
    check_listeners(config(redis={"port": taken_port, "url": "redis://127.0.0.1:1"}))


def test_free_and_chosen_later_are_no_reason_to_stop() -> None:
    check_listeners(config())


def test_an_address_that_is_not_free_is_told_why(taken_port: int) -> None:
    assert why_not_free(f"127.0.0.1:{taken_port}") == "address already in use"
    assert why_not_free("127.0.0.1:0") is None
    assert why_not_free("[::ffff:127.0.0.1]:0") is None
    assert re.search("cannot assign", why_not_free("192.0.2.1:0") or "")


def test_serve_starts_nothing_when_an_address_is_taken(taken_port: int) -> None:
    settings = [f"--set=worker.metrics_listen=127.0.0.1:{taken_port}", "--set=gateway.listen=127.0.0.1:0"]
    result = CliRunner().invoke(main, ["serve", "--demo", *settings])
    assert result.exit_code == 1
    assert f"127.0.0.1:{taken_port} (worker.metrics_listen): address already in use" in result.output
    assert "Starting" not in result.output


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_a_taken_address_ends_a_command_with_one_line(taken_port: int, name: str) -> None:
    address = f"127.0.0.1:{taken_port}"
    free = ("gateway.http.listen=127.0.0.1:0", "gateway.metrics_listen=127.0.0.1:0")
    settings = (f"{name}.listen={address}", "redis.url=redis://127.0.0.1:1", *free)
    arguments = [word for setting in settings for word in ("--set", setting)]
    # A worker loads no model before it looks: with this one it would end with another message.
    result = CliRunner().invoke(main, [name, *arguments, "--set", "worker.model.model=/no/such/model"])
    assert result.exit_code == 1
    assert result.output == f"Error: cannot listen on {address}: address already in use\n"
