"""Figures of a load are computed from what came back; what was not asked for is no figure but an error."""

import asyncio

import pytest

from benchmarks.comparison import Measured, figures, ratios
from benchmarks.load import AnswerError, Arrival, LoadResult, Timing, run_waves, send_all, together
from benchmarks.workloads import Chats, TokenText, Turn

TEXT = tuple(range(1000))


def timing(*arrivals: tuple[float, int], sent_s: float = 0.0, prompt: int = 10, cached: int = 0) -> Timing:
    tokens = sum(count for _, count in arrivals)
    return Timing(sent_s, tuple(Arrival(at, count) for at, count in arrivals), (7,) * tokens, prompt, cached)


class EchoClient:
    """Answers with the last token of the prompt, in one message; keeps what it was asked, and how many at a time."""

    def __init__(self, short_by: int = 0) -> None:
        self.asked: list[Turn] = []
        self.most_at_a_time = 0
        self._now = 0
        self._short_by = short_by

    async def answer(self, turn: Turn) -> Timing:
        self.asked.append(turn)
        self._now += 1
        self.most_at_a_time = max(self.most_at_a_time, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        tokens = turn.token_ids[-1:] * (turn.max_new_tokens - self._short_by)
        return Timing(1.0, (Arrival(2.0, len(tokens)),), tokens, len(turn.token_ids), 0)


def test_time_between_tokens_is_that_after_the_first_message() -> None:
    one = timing((1.0, 2), (1.5, 1), (3.0, 3), sent_s=0.25)

    assert one.ttft_s == 0.75
    assert one.inter_token_s == 0.5
    assert timing((1.0, 4)).inter_token_s is None


def test_a_summary_counts_tokens_and_averages_over_requests() -> None:
    result = LoadResult(2.0, (timing((1.0, 1), (2.0, 1), cached=5), timing((0.5, 2), prompt=30)))

    summary = result.summary()

    assert (summary["prompt_tokens"], summary["cached_tokens"], summary["completion_tokens"]) == (40, 5, 4)
    assert (summary["ttft_mean_s"], summary["ttft_max_s"]) == (0.75, 1.0)
    assert summary["itl_mean_ms"] == 1000  # of the one request that has any
    assert summary["hit_rate"] == 0.125


def test_walls_add_up() -> None:
    both = together([LoadResult(2.0, (timing((1.0, 1)),)), LoadResult(0.5, (timing((3.0, 1)),))])

    assert both.wall_s == 2.5
    assert len(both.timings) == 2


async def test_all_of_a_wave_are_under_way_at_once_unless_told_otherwise() -> None:
    turns = [Turn("acme", (1, 2), 1) for _ in range(6)]
    unbounded, bounded = EchoClient(), EchoClient()

    await send_all(unbounded, turns)
    await send_all(bounded, turns, concurrency=2)

    assert (unbounded.most_at_a_time, bounded.most_at_a_time) == (6, 2)


async def test_a_chat_goes_on_from_what_was_really_generated() -> None:
    client = EchoClient()
    workload = Chats(chats=2, turns=3, shared=5, question=4, output=3)

    phases = await run_waves(client, workload.waves(TokenText(TEXT, 0), "acme"))

    first, _, second, *_ = client.asked
    assert second.token_ids[:12] == first.token_ids + first.token_ids[-1:] * 3
    assert len(phases["all"].timings) == 6


async def test_too_few_tokens_are_an_error() -> None:
    with pytest.raises(AnswerError, match="asked for exactly 4 tokens, got 3"):
        await send_all(EchoClient(short_by=1), [Turn("acme", (1,), 4)])


async def test_medians_are_over_repetitions_and_phases_stand_apart() -> None:
    def phases(cold_s: float, warm_s: float) -> dict[str, LoadResult]:
        return {
            name: LoadResult(wall_s, (timing((wall_s, 1), cached=5),))
            for name, wall_s in (("cold", cold_s), ("warm", warm_s))
        }

    found = figures(Measured((phases(4.0, 1.0), phases(3.0, 2.0), phases(9.0, 9.0)), peak_rss_mb=100.0))

    assert (found["wall_s"], found["wall_cold_s"], found["ttft_warm_s"]) == (5.0, 4.0, 2.0)
    assert (found["prompt_tokens"], found["cached_tokens"], found["cached_warm_tokens"]) == (20, 10, 5)
    assert [one["wall_s"] for one in found["repetitions"]] == [5.0, 5.0, 18.0]
    assert found["peak_rss_mb"] == 100.0


def test_ratios_are_of_costs_that_both_have() -> None:
    ours = {"wall_s": 1.0, "ttft_warm_s": 3.0, "itl_mean_ms": 0.0, "cached_tokens": 5, "peak_rss_mb": None}
    peers = {"wall_s": 2.0, "ttft_warm_s": 2.0, "itl_mean_ms": 8.0, "cached_tokens": 5, "peak_rss_mb": 10.0}

    assert ratios(ours, peers) == {"wall_s": 0.5, "ttft_warm_s": 1.5}
