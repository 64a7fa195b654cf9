import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.child import Child
from cli.tied import tied_command
from tests.processes import is_gone, wait_until


def start(name: str, tmp_path: Path, settings: Mapping[str, object]) -> tuple[Child, list[str]]:
    logs: list[str] = []
    child = Child.start(
        name,
        [],
        settings,
        tmp_path / "ready.json",
        on_log=logs.append,
        on_progress=lambda stage, fraction: None,
    )
    return child, logs


def test_a_child_that_ends_tells_how_after_it_has_said_why(tmp_path: Path) -> None:
    child, logs = start("gateway", tmp_path, {"gateway": {"bogus": 1}})
    wait_until(lambda: child.death() is not None, timeout_s=30)
    assert child.death() == "the gateway ended with status 1"
    assert "gateway.bogus: there is no such setting" in "\n".join(logs)


def test_a_killed_child_is_told_by_its_signal(tmp_path: Path) -> None:
    child, _ = start("gateway", tmp_path, {"redis": {"url": "redis://127.0.0.1:1"}})
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: child.death() is not None)
    assert "the gateway was ended by SIGKILL; the machine may have run out of memory" in str(child.death())


def test_a_child_is_configured_without_its_secrets_in_the_process_list(tmp_path: Path) -> None:
    settings = {
        "redis": {"url": "redis://:hunter2@127.0.0.1:1"},
        "gateway": {
            "listen": "127.0.0.1:0",
            "http": {"listen": "127.0.0.1:0"},
            "metrics_listen": "127.0.0.1:0",
            "admin_token": "sesame-0123456789",
        },
    }
    child, _ = start("gateway", tmp_path, settings)
    try:
        wait_until(lambda: child.ready() is not None or child.death() is not None, timeout_s=30)
        ready = child.ready()
        assert ready is not None, child.death()
        assert set(ready) == {"grpc", "http", "metrics"}
        command_line = Path(f"/proc/{child.pid}/cmdline").read_text(encoding="utf-8")
        assert "hunter2" not in command_line
        assert "sesame" not in command_line
    finally:
        child.terminate()
        assert child.wait(20)
    assert "ended with status 0" in str(child.death())


def test_a_program_that_is_tied_dies_with_its_parent() -> None:
    program = (
        "import subprocess, sys, time, signal; from cli.tied import tied_command; "
        "child = subprocess.Popen(tied_command(['sleep', '60'], death_signal=signal.SIGKILL)); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: "sleep" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")[0])
        parent.kill()
    wait_until(lambda: is_gone(child))


def test_a_program_whose_parent_is_gone_already_is_not_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = tied_command(["touch", str(started)], death_signal=signal.SIGKILL)
    command[command.index(str(os.getpid()))] = "1"  # as if the parent that asked had been another one
    subprocess.run(command, check=True, timeout=20)
    assert not started.exists()
