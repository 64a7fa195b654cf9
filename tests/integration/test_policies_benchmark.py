"""The benchmark of eviction policies measures what its documentation says. Its figures are not judged here."""

from pathlib import Path

from rich.console import Console

from benchmarks import traces
from benchmarks.policies import measure, plot, show, workloads
from hicache.radix import policy


def test_every_policy_is_measured_in_every_size_and_shown(tmp_path: Path) -> None:
    stages: list[str] = []
    rows = measure("loop", traces.loop(num_rounds=3, num_prompts=20), stages.append)
    assert [set(row.hit_rates) for row in rows] == [set(policy.NAMES)] * 3
    assert [row.device_slots for row in rows] == sorted(row.device_slots for row in rows)
    assert len(stages) == 3 * len(policy.NAMES)
    console = Console(record=True, width=120)
    show(console, rows)
    assert "lhd" in console.export_text()
    plot(tmp_path / "plot.png", rows)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_made_workloads_are_the_same_each_time_and_in_the_order_of_their_time() -> None:
    for make in (traces.documents, traces.chats):
        once, again = make(), make()
        assert [request.prompt.tobytes() for request in once] == [request.prompt.tobytes() for request in again]
        times = [request.timestamp_s for request in once]
        assert times == sorted(times)


def test_traces_that_do_not_lie_there_are_left_out(tmp_path: Path) -> None:
    recorded = [load() for name, load in workloads(tmp_path).items() if name in {"mooncake", "magagent", "miniswe"}]
    assert recorded == [None] * 3
