"""`radixgate replay` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.replay.report import slots_from, slots_text
from tests.tools import REPOSITORY

TRACE = REPOSITORY / "tests" / "data" / "chats.jsonl"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["replay", *arguments])
    return result.exit_code, result.output


def test_one_cache_is_reported_as_a_table_and_as_json(tmp_path: Path) -> None:
    report = tmp_path / "new" / "report.json"
    status, output = run(str(TRACE), "--device-slots", "4K", "--json", str(report))
    assert status == 0, output
    assert "hit rate" in output
    found = json.loads(report.read_text())
    assert found["hit_rate"] == pytest.approx(found["device"] + found["host"])
    assert found["hit_rate"] == pytest.approx(found["hit_tokens"] / found["prompt_tokens"])
    assert 0 < found["hit_rate"] < 1
    assert found["host"] == 0
    assert found["cached_tokens"] == 4096
    assert found["evicted_tokens"] > 0
    assert (found["device_slots"], found["page_size"], found["policy"]) == (4096, 1, "lru")
    assert [found[name] for name in found["runs"][0]] == list(found["runs"][0].values())


def test_every_combination_is_run_in_the_order_given(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    status, output = run(
        str(TRACE), "--policy", "lru", "--policy", "lfu", "--device-slots", "4K,unlimited", "--json", str(report)
    )
    assert status == 0, output
    runs = json.loads(report.read_text())["runs"]
    assert [(each["policy"], each["device_slots"]) for each in runs] == [
        ("lru", 4096),
        ("lru", None),
        ("lfu", 4096),
        ("lfu", None),
    ]
    assert runs[1]["hit_rate"] == runs[3]["hit_rate"] > runs[0]["hit_rate"]
    assert runs[1]["evicted_tokens"] == 0
    assert "unlimited" in output


def test_what_leaves_the_device_is_found_on_the_host(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    status, output = run(str(TRACE), "--device-slots", "4K", "--host-slots", "0,16K", "--json", str(report))
    assert status == 0, output
    alone, tiered = json.loads(report.read_text())["runs"]
    assert tiered["host"] > 0
    assert tiered["hit_rate"] > alone["hit_rate"]
    assert "host slots" in output


@pytest.mark.parametrize(
    "arguments", [("--device-slots", "4K", "--host-slots", "8K"), ("--device-slots", "4K,8K"), ("--policy", "lru,lhd")]
)
def test_a_picture_is_drawn(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    picture = tmp_path / "plot.png"
    status, output = run(str(TRACE), "--plot", str(picture), *arguments)
    assert status == 0, output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_refused_before_the_work(tmp_path: Path) -> None:
    # An entry of None makes an import fail as if the package were not there.
    program = "import sys; sys.modules['matplotlib'] = None; from cli.main import main; main()"
    command = [sys.executable, "-c", program, "replay", str(TRACE), "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)
    assert done.returncode == 1
    assert "--plot needs the Python package matplotlib" in done.stderr
    assert "radixgate[plot]" in done.stderr
    assert "reading" not in done.stderr


def test_the_command_loads_no_matplotlib_until_it_draws() -> None:
    program = "import sys, cli.replay; assert not {'matplotlib', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device-slots", "4X"), "'4X'"),
        (("--device-slots", "0"), "'0': must be at least 1"),
        (("--host-slots", "-1"), "'-1': -1 is negative"),
        (("--device-slots", "1e9"), "'1e9': must be a whole number, as in 65536 or 64K"),
        (("--page-size", "0"), "'0': must be a whole number from 1 to 1048576"),
        (("--page-size", "2147483647"), "'2147483647': must be a whole number from 1 to 1048576"),
        (("--json", "/proc/no-such-folder/figures.json"), "cannot be written"),
        (("--json", str(TRACE / "figures.json")), "cannot be written"),
        (("--plot", "/proc/no-such-folder/plot.png"), "cannot be written"),
        (("--plot", "plot.doc"), "must end in .png, .svg, .pdf"),
        (("--policy", "best"), "unknown eviction policy 'best', expected one of lru"),
    ],
)
def test_a_value_that_is_none_is_refused_with_its_option(arguments: tuple[str, str], message: str) -> None:
    status, output = run(str(TRACE), *arguments)
    assert status == 2
    assert f"Invalid value for '{arguments[0]}'" in output
    assert message in output


def test_slots_that_are_no_whole_pages_are_refused() -> None:
    status, output = run(str(TRACE), "--device-slots", "100", "--page-size", "16")
    assert status == 1
    assert "num_slots must be a positive multiple of page_size 16, got 100" in output


def test_slots_beyond_what_the_trace_can_fill_cost_nothing() -> None:
    status, output = run(str(TRACE), "--device-slots", "4000G", "--host-slots", "4000G")
    assert status == 0, output


def test_a_full_disk_is_said_without_a_traceback() -> None:
    status, output = run(str(TRACE), "--json", "/dev/full")
    assert status == 1
    assert "Error: the results cannot be written" in output


def test_a_file_that_could_be_written_is_not_touched_by_a_run_that_fails(tmp_path: Path) -> None:
    there, new = tmp_path / "there.json", tmp_path / "new.json"
    there.write_text("figures of yesterday")
    for path in (there, new):
        assert run(str(TRACE), "--json", str(path), "--device-slots", "100", "--page-size", "16")[0] == 1
    assert there.read_text() == "figures of yesterday"
    assert not new.exists()


def test_a_bad_line_ends_the_command_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"token_ids": [1]}\n{"token_ids": [1, "x"]}\n')
    status, output = run(str(path))
    assert status == 1
    assert f"{path}, line 2: token_ids: must be integers" in output


@pytest.mark.parametrize(("text", "slots"), [("1", 1), ("65536", 2**16), ("64K", 2**16), ("4M", 2**22), ("1g", 2**30)])
def test_numbers_of_slots_have_suffixes(text: str, slots: int) -> None:
    assert slots_from(text) == slots
    assert slots_from(slots_text(slots)) == slots
