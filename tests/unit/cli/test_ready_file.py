import stat
from pathlib import Path

import pytest

from cli.ready_file import read_ready_file, write_ready_file


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
