import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main

COMMANDS = (
    "serve", "gateway", "worker", "tenant", "key", "adapter", "prefix", "cache", "usage", "audit", "isolation-check",
    "chat", "replay",
)  # fmt: skip


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments, env=environ)
    return result.exit_code, result.output


def test_help_names_every_command() -> None:
    status, output = run("--help")
    assert status == 0
    assert all(f"\n  {name} " in output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    status, output = run(name, "--help")
    assert status == 0
    assert output.startswith(f"Usage: main {name}")


def test_an_unknown_command_is_told() -> None:
    status, output = run("sevre")
    assert status == 2
    assert "No such command 'sevre'" in output


def test_the_version_is_the_packages() -> None:
    assert run("--version") == (0, "radixgate 0.1.0\n")


@pytest.mark.parametrize("name", ["serve", "gateway", "worker"])
def test_check_prints_the_effective_configuration_and_ends(name: str) -> None:
    status, output = run(name, "--check", "--set", "worker.cache.num_slots=64")
    assert status == 0
    assert "num_slots = 64" in output


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_a_worker_without_a_model_is_asked_for_by_an_option(name: str) -> None:
    section = "[worker.simulation]\nenabled = {}\n"
    assert section.format("true") in run(name, "--simulate", "--check")[1]
    assert section.format("false") in run(name, "--check")[1]


def test_a_demo_waits_for_running_streams_only_shortly_unless_told() -> None:
    assert "drain_s = 3.0" in run("serve", "--demo", "--check")[1]
    assert "drain_s = 7.0" in run("serve", "--demo", "--check", "--set", "gateway.server.drain_s=7")[1]
    assert "drain_s = 30.0" in run("serve", "--check")[1]


@pytest.mark.parametrize("name", ["serve", "gateway", "worker"])
def test_a_wrong_configuration_ends_with_its_faults(name: str) -> None:
    status, output = run(name, "--set", "worker.engine.max_runing=8")
    assert status == 1
    assert "worker.engine.max_runing: there is no such setting; did you mean worker.engine.max_running?" in output


def test_a_gateway_without_redis_says_what_is_missing() -> None:
    status, output = run("gateway")
    assert status == 1
    assert "redis.url: is not set" in output


@pytest.mark.parametrize("name", ["serve", "gateway", "worker"])
@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere/ready.json", "there is no folder {}/nowhere"), ("", "{} is a folder"), ("sealed/r.json", "{}/sealed")],
)
def test_a_ready_file_that_could_not_be_written_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, message: str
) -> None:
    (tmp_path / "sealed").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: "sealed" not in str(path))
    status, output = run(name, "--ready-file", str(tmp_path / place))
    assert status == 2
    assert "Invalid value for '--ready-file'" in output
    assert message.format(tmp_path) in output


def test_without_an_admin_token_the_three_places_for_it_are_named(tmp_path: object) -> None:
    status, output = run("tenant", "list", XDG_DATA_HOME=str(tmp_path))
    assert status == 2
    for place in ("RADIXGATE_ADMIN_TOKEN", "--config", "--admin-token-file"):
        assert place in output


def test_a_gateway_that_is_not_there_is_told_with_a_hint() -> None:
    status, output = run("chat", "--target", "127.0.0.1:1", "--key", "k", "hello")
    assert status == 1
    assert "UNAVAILABLE" in output
    assert "`radixgate serve` starts it" in output


@pytest.mark.parametrize("name", ["chat", "tenant", "adapter", "isolation_check", "serve", "gateway", "replay"])
def test_only_the_worker_command_loads_torch(name: str) -> None:
    program = f"import importlib, sys; importlib.import_module('cli.{name}'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
