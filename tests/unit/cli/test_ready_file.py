import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.ready_file import read_ready_file, write_ready_file, writer_is_gone, written_by


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    assert read_ready_file(path) is None
    write_ready_file(path, {"grpc": "127.0.0.1:1"})
    assert read_ready_file(path) == {"grpc": "127.0.0.1:1"}


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, {"run": 1})
    write_ready_file(path, {"run": 2})
    assert read_ready_file(path) == {"run": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_ready_file(tmp_path / "ready.json", {"not json": object()})
    assert list(tmp_path.iterdir()) == []


def test_whoever_still_runs_is_not_gone() -> None:
    assert not writer_is_gone(written_by())
    assert not writer_is_gone({"grpc": "127.0.0.1:1"})  # it does not say who it was


def test_whoever_has_ended_is_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert writer_is_gone({**written_by(), "pid": ended.pid})


def test_of_a_process_in_another_container_nothing_is_known() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not writer_is_gone({"pid": ended.pid, "pid_namespace": "pid:[1]"})
