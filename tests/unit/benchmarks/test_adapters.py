"""What the benchmark of adapters sends, and the folders it makes."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapter_folders import make_adapters
from benchmarks.adapters import Changed, _zipf
from benchmarks.arrivals import Arriving
from benchmarks.document_tables import adapters as adapters_table
from benchmarks.load import Timing
from benchmarks.workloads import TokenText, Turn
from tests.integration.tiny_models import tiny_model
from worker.lora.folder import read_adapter
from worker.lora.targets import linear_targets

DOCUMENT = list(range(20_000))


class Echo:
    """A client that remembers what it was asked."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def answer(self, turn: Turn) -> Timing:
        self.turns.append(turn)
        return Timing(0.0, (), (), len(turn.token_ids), 0)


def test_the_adapters_that_are_made_change_every_linear_layer_and_are_all_different(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    targets = linear_targets(model)

    made = make_adapters(tmp_path / "model", tmp_path / "made", count=3, rank=4)

    read = [read_adapter(folder, targets, torch.float32, 64) for folder in made.values()]
    assert list(made) == ["adapter-00", "adapter-01", "adapter-02"]
    assert all(adapter.modules.keys() == targets.keys() for adapter in read)
    assert {adapter.rank for adapter in read} == {4}
    assert len({adapter.revision for adapter in read}) == 3


def test_turns_are_given_adapters_one_after_another() -> None:
    echo = Echo()
    client = Changed(echo, [partial(replace, adapter=name) for name in ("a", "b", "c")])

    async def send() -> None:
        for _ in range(5):
            await client.answer(Turn("tenant", (1, 2), 4))

    asyncio.run(send())

    assert [turn.adapter for turn in echo.turns] == ["a", "b", "c", "a", "b"]


def test_requests_come_at_their_rate_and_more_often_for_the_first_adapters() -> None:
    names = [f"adapter-{number}" for number in range(4)]

    def arrivals(some: list[str]) -> list[Arriving]:
        return _zipf(some, "tenant", TokenText(DOCUMENT, 0), rate=10.0, count=2_000, seed="s")

    arriving = arrivals(names)

    counts = Counter(each.turn.adapter for each in arriving)
    assert [name for name, _ in counts.most_common()] == names
    assert 1.7 < counts[names[0]] / counts[names[1]] < 2.3
    assert 180 < arriving[-1].at_s < 220
    assert arriving == arrivals(names)
    assert [each.at_s for each in arrivals(names[:2])] == [each.at_s for each in arriving]


def test_the_table_has_a_line_for_each_side_and_says_how_much_longer_the_slowest_wait() -> None:
    side = {"wall_s": 2.0, "ttft_mean_s": 0.5, "itl_mean_ms": 25.0}
    sides = dict.fromkeys(("base", "one", "base_apart", "many"), side)
    report: dict[str, Any] = {
        "settings": {"adapters": 16, "rank": 8, "repetitions": 5},
        "speed": {"w1": {**sides, "ratio_one": 1.07, "ratio_many": 1.25}},
        "places": {
            "places": 8, "requests_per_s": 12.0, "ratio": 1.5,
            "fitting": {"adapters": 8, "ttft_p99_s": 0.2}, "crowded": {"adapters": 16, "ttft_p99_s": 0.3},
        },
    }  # fmt: skip

    lines = adapters_table(report).splitlines()

    assert "| w1, one adapter | 2.00 | 1.07 | 0.50 | 25.0 |" in lines
    assert "| w1, 16 adapters | 2.00 | 1.25 | 0.50 | 25.0 |" in lines
    assert lines[-1].endswith("8 adapters 200 ms, 16 adapters 300 ms, 1.50 times as long.")
