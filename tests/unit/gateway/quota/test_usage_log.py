"""The usage log's file: whole lines, in order, whatever happens to the file and the disk."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.quota.usage_log import UsageLog
from tests.processes import open_files

DEADLINE_S = 20.0


class Lost:
    """Counts lines that are lost."""

    def __init__(self) -> None:
        self.lines = 0

    def usage_lines_lost(self, lines: int) -> None:
        self.lines += lines


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.005)


def numbers(path: Path) -> list[int]:
    """The lines of a file, which must all be whole."""
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


@contextmanager
def open_log(path: Path, lost: Lost | None = None, **settings: Any) -> Iterator[UsageLog]:
    log = UsageLog(str(path), lost or Lost(), **{"retry_s": 0.02, **settings})
    log.start()
    try:
        yield log
    finally:
        log.close(DEADLINE_S)


def write(log: UsageLog, *lines: int) -> None:
    for number in lines:
        log.write({"number": number, "tenant": "café"})


def test_lines_are_written_in_order_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        write(log, *range(5_000))
    assert numbers(path) == list(range(5_000))
    assert path.read_text().startswith('{"number":0,"tenant":"café"}\n')
    assert path.stat().st_mode & 0o007 == 0  # whose usage it is concerns not everybody


def test_lines_are_written_soon_and_not_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        write(log, 1)
        wait_until(lambda: log.num_waiting() == 0)
        assert numbers(path) == [1]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    for number in (1, 2):
        with open_log(path) as log:
            write(log, number)
    assert numbers(path) == [1, 2]


def test_many_threads_may_write(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        writers = [threading.Thread(target=write, args=(log, *range(n, n + 200))) for n in range(0, 800, 200)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert sorted(numbers(path)) == list(range(800))


def test_a_file_that_was_renamed_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, rotated = tmp_path / "usage.jsonl", tmp_path / "usage.jsonl.1"
    with open_log(path) as log:
        write(log, 1)
        wait_until(lambda: log.num_waiting() == 0)
        path.rename(rotated)
        write(log, 2, 3)
    assert (numbers(rotated), numbers(path)) == ([1], [2, 3])


def test_a_file_is_opened_anew_when_told_although_nothing_is_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        path.rename(tmp_path / "usage.jsonl.1")
        log.reopen()
        wait_until(path.exists)
        write(log, 1)
    assert numbers(path) == [1]


def test_what_a_full_disk_does_not_take_waits_for_room(tmp_path: Path) -> None:
    path, lost = tmp_path / "usage.jsonl", Lost()
    path.symlink_to("/dev/full")
    with open_log(path, lost) as log:
        write(log, *range(50))
        time.sleep(0.1)
        assert log.num_waiting() == 50
        path.unlink()
        wait_until(lambda: log.num_waiting() == 0)
    assert numbers(path) == list(range(50))
    assert lost.lines == 0


def test_what_does_not_fit_while_the_disk_is_full_is_lost_and_counted(tmp_path: Path) -> None:
    path, lost = tmp_path / "usage.jsonl", Lost()
    path.symlink_to("/dev/full")
    with open_log(path, lost, max_waiting=10) as log:
        began = time.monotonic()
        write(log, *range(1_000))
        assert time.monotonic() - began < DEADLINE_S  # nobody waits for the disk
        assert lost.lines == 990
        path.unlink()
    assert numbers(path) == list(range(10))


def test_what_cannot_be_written_by_the_end_is_lost_and_counted(tmp_path: Path) -> None:
    path, lost = tmp_path / "usage.jsonl", Lost()
    path.symlink_to("/dev/full")
    log = UsageLog(str(path), lost, retry_s=0.02)
    log.start()
    write(log, 1, 2, 3)
    log.close(0.1)
    log.close(0.1)
    assert lost.lines == 3
    write(log, 4)
    assert lost.lines == 4


CUT_SHORT = """
import json, resource, signal, sys, time
from gateway.quota.usage_log import UsageLog
from tests.processes import open_files

class Lost:
    def usage_lines_lost(self, lines):
        sys.exit("a line was lost")

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
log = UsageLog(sys.argv[1], Lost(), retry_s=0.02)
log.start()
for number in range(10):
    log.write({"number": number, "padding": "x" * 20})
time.sleep(0.3)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.close(20)
"""


def test_a_line_that_a_full_disk_has_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    subprocess.run([sys.executable, "-c", CUT_SHORT, str(path)], check=True, timeout=60, stdout=subprocess.DEVNULL)
    lines = path.read_text().splitlines()
    whole = [line for line in lines if line.endswith("}")]
    assert [json.loads(line)["number"] for line in whole] == list(range(10))
    (cut,) = [line for line in lines if not line.endswith("}")]
    assert any(line.startswith(cut) for line in whole)


def test_a_file_that_cannot_be_opened_is_named_with_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "usage.jsonl"
    log = UsageLog(str(path), Lost())
    with pytest.raises(OSError, match=f"gateway.usage_log: cannot open {path}: No such file or directory"):
        log.start()


def test_a_fifo_that_nobody_reads_is_refused_at_once_and_one_that_is_read_is_written(tmp_path: Path) -> None:
    path = tmp_path / "usage.fifo"
    os.mkfifo(path)
    refusals: list[str] = []

    def start() -> None:
        try:
            UsageLog(str(path), Lost()).start()
        except OSError as error:
            refusals.append(str(error))

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(DEADLINE_S)
    assert f"gateway.usage_log: cannot open {path}" in "".join(refusals)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open_log(path) as read:
        write(read, 1)
        wait_until(lambda: read.num_waiting() == 0)
    assert json.loads(os.read(reader, 1_000))["number"] == 1
    os.close(reader)


def test_lines_that_come_while_the_disk_is_full_hasten_no_try(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.symlink_to("/dev/full")
    with open_log(path, retry_s=DEADLINE_S) as log:
        write(log, *range(1_000))
        began = time.thread_time(), time.process_time()
        for _ in range(200):
            write(log, 1)
            time.sleep(0.001)  # lets the writing thread in
        others = time.process_time() - began[1] - (time.thread_time() - began[0])
        assert others < 0.1  # encoding a thousand lines two hundred times takes most of a second
        path.unlink()


def test_what_is_no_unicode_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        log.write({"number": 1, "request_id": "half of a \ud83d"})
        write(log, 2)
    assert numbers(path) == [1, 2]


def test_a_dash_is_standard_output() -> None:
    script = (
        "from gateway.observer import NullObserver; from gateway.quota.usage_log import UsageLog\n"
        "log = UsageLog('-', NullObserver()); log.start(); log.write({'number': 1}); log.close(20)"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)
    assert ended.stdout == '{"number":1}\n'


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    with open_log(path) as log:
        write(log, 1)
        wait_until(lambda: path in open_files())
    assert path not in open_files()
