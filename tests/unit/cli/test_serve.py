"""`radixgate serve` as a process: what goes wrong, and what stays."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.stack import Client, chat_request
from tests.processes import is_gone, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `radixgate serve` with `folder` as the user's data folder; killed at the end if it still runs."""
    command = [sys.executable, "-m", "cli", "serve", "--ready-file", str(folder / "ready.json"), *arguments]
    environ = os.environ | {"XDG_DATA_HOME": str(folder / "share")}
    log = folder / "log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_ready(process: "subprocess.Popen[str]", folder: Path) -> dict[str, Any]:
    ready_file = folder / "ready.json"
    wait_until(lambda: ready_file.exists() or process.poll() is not None, timeout_s=240, what="ready")
    assert process.poll() is None, (folder / "log").read_text("utf-8")
    ready: dict[str, Any] = json.loads(ready_file.read_text("utf-8"))
    return ready


def descendants(process: "subprocess.Popen[str]") -> dict[str, int]:
    """The children's process ids by what they are."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if line := child.cmdline():  # empty between its birth and its program, and after its end
                name = next((word for word in ("worker", "gateway") if word in line), Path(line[0]).name)
                found[name] = child.pid
    return found


def operator(folder: Path, target: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "cli", *arguments, "--target", target]
    environ = os.environ | {"XDG_DATA_HOME": str(folder / "share")}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout


def test_tenants_outlive_a_run_that_ends_badly(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        ready = until_ready(process, tmp_path)
        assert ready["tenants"] == {}
        operator(tmp_path, ready["grpc"], "tenant", "create", "acme")
        family = descendants(process)
        assert set(family) == {"worker", "gateway", "valkey-server"}
        os.kill(family["worker"], signal.SIGKILL)
        assert process.wait(60) == 1
        assert "the worker was ended by SIGKILL" in (tmp_path / "log").read_text("utf-8")
        assert all(is_gone(pid) for pid in family.values())
        assert not (tmp_path / "ready.json").exists()

    with serving(tmp_path) as process:
        ready = until_ready(process, tmp_path)
        assert "acme" in operator(tmp_path, ready["grpc"], "tenant", "list")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_second_one_on_the_same_data_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "share").symlink_to(tmp_path / "share")
    with serving(tmp_path) as first:
        wait_until((tmp_path / "share" / "radixgate" / "serve.lock").exists, timeout_s=60, what="lock")
        with serving(tmp_path / "second") as second:
            assert second.wait(60) == 1
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
    assert f"(pid {first.pid})" in (tmp_path / "second" / "log").read_text("utf-8")


def test_a_model_that_is_not_there_ends_it_with_the_reason(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--set", "worker.model.model=/no/such/model") as process:
        assert process.wait(120) == 1
        log = (tmp_path / "log").read_text("utf-8")
        assert "the worker ended with status 1" in log
        assert log.count("'/no/such/model' is no model") == 1
        assert "Traceback" not in log


def test_a_second_signal_ends_it_at_once_while_a_stream_runs(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--set", "gateway.server.drain_s=600") as process:
        ready = until_ready(process, tmp_path)
        family = descendants(process)
        client = Client(ready["grpc"], ready["tenants"]["demo-a"])
        stream = client.stream(chat_request("Count to a thousand.", max_new_tokens=4000), timeout_s=600)
        assert next(stream).token_ids
        process.send_signal(signal.SIGINT)
        stopping = "stopping: waiting up to 600 s for running streams; Ctrl-C again ends now"
        wait_until(lambda: stopping in (tmp_path / "log").read_text("utf-8"), timeout_s=30, what="stopping")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
        client.close()
        assert all(is_gone(pid) for pid in family.values())
        assert not (tmp_path / "ready.json").exists()


def test_a_signal_while_it_starts_ends_it_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as process:
        wait_until(lambda: "worker" in descendants(process), timeout_s=60, what="worker started")
        family = descendants(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert all(is_gone(pid) for pid in family.values())
        assert "stopped before everything was ready" in (tmp_path / "log").read_text("utf-8")
