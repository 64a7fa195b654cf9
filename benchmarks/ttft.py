"""Time to the first token against the share of the prompt that is cached, through the gateway, one request at a time.

    python -m benchmarks.ttft --json out.json --plot out.png [--check]

For each prompt length a prefix is primed with a request of its own; then prompts of that length follow that begin with
more or less of it. What was really cached is taken from the responses. To the medians of all points a model is fitted,
see `benchmarks.ttft_model`; `max_deviation` says how far it is off at worst, and with `--check` the exit status is 1
where that is more than `--limit`. Text is fresh in each repetition; the stack is started here, unless `--target` and
`--key` name one that runs.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks import ttft_model, ttft_report
from benchmarks.gateway_client import gateway_client
from benchmarks.load import Client, Timing, send_all
from benchmarks.machine import describe_machine, write_report
from benchmarks.stack import add_stack_arguments, check_stack_arguments, running_stack, settings
from benchmarks.ttft_model import Work
from benchmarks.workloads import Tokens, TokenText, Turn, document

LENGTHS = (1000, 2000, 4000)
RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Point:
    """A prompt length and the share of it that is primed."""

    prompt_tokens: int
    hit_ratio: float

    @property
    def primed_tokens(self) -> int:
        return round(self.prompt_tokens * self.hit_ratio)


Timings = dict[Point, list[Timing]]


async def measure(
    client: Client, tenant: str, lengths: Sequence[int], ratios: Sequence[float], texts: Sequence[TokenText]
) -> Timings:
    """Return the timings of every point, one for each of `texts`."""
    timings: Timings = {Point(length, ratio): [] for length in lengths for ratio in ratios}
    for text in texts:
        for length in lengths:
            prefix = text.cut(max(Point(length, ratio).primed_tokens for ratio in ratios))
            if prefix:
                await _first_token(client, tenant, prefix)
            for ratio in ratios:
                point = Point(length, ratio)
                prompt = prefix[: point.primed_tokens] + text.cut(length - point.primed_tokens)
                timings[point].append(await _first_token(client, tenant, prompt))
    return timings


async def _first_token(client: Client, tenant: str, prompt: Tokens) -> Timing:
    result = await send_all(client, [Turn(tenant, prompt, max_new_tokens=1)])
    return result.timings[0]


def report_of(timings: Timings) -> dict[str, Any]:
    """Return the points, the model fitted to them, and its deviations."""
    works = [
        Work(point.prompt_tokens, round(median(timing.cached_tokens for timing in found)))
        for point, found in timings.items()
    ]
    ttfts_s = [median(timing.ttft_s for timing in found) for found in timings.values()]
    model = ttft_model.fit(works, ttfts_s)
    points = [
        {
            **asdict(point),
            "cached_tokens": work.cached_tokens,
            "computed_tokens": work.computed,
            "attended_pairs": work.pairs,
            "ttft_s": ttft_s,
            "ttfts_s": [timing.ttft_s for timing in found],
            "predicted_s": model.ttft_s(work),
            "deviation": deviation,
        }
        for (point, found), work, ttft_s, deviation in zip(
            timings.items(), works, ttfts_s, ttft_model.deviations(model, works, ttfts_s), strict=True
        )
    ]
    return {**ttft_model.as_report(model, works, ttfts_s), "points": points}


async def _run(target: str, keys: dict[str, str], arguments: argparse.Namespace) -> Timings:
    tenant = next(iter(keys))
    async with gateway_client(target, keys) as client:
        token_ids = await client.token_ids(document(), tenant)
        texts = [TokenText(token_ids, f"{arguments.seed}/ttft/{index}") for index in range(arguments.repetitions)]
        warm_up = TokenText(token_ids, f"{arguments.seed}/ttft/warm-up")
        await _first_token(client, tenant, warm_up.cut(max(arguments.lengths)))
        return await measure(client, tenant, arguments.lengths, arguments.ratios, texts)


def main() -> int:
    arguments = _parse()
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        if arguments.target:
            target, keys = arguments.target, {"given": arguments.key}
        else:
            chosen = settings(
                worker__model__dtype=arguments.dtype, worker__model__threads=arguments.threads, log__level="warning"
            )
            running = stack.enter_context(running_stack([*chosen, *arguments.serve_argument]))
            target, keys = running.target, running.keys
        report = report_of(asyncio.run(_run(target, keys, arguments)))
    report |= {
        "limit": arguments.limit,
        "settings": {name: getattr(arguments, name) for name in ("dtype", "threads", "repetitions", "seed")},
        "load_average_before": load_before,
        "machine": describe_machine(),
    }
    ttft_report.print_table(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        ttft_report.draw(report, arguments.plot)
    return 1 if arguments.check and report["max_deviation"] > arguments.limit else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=LENGTHS, metavar="N", help="tokens of a prompt")
    add("--ratios", type=float, nargs="+", default=RATIOS, metavar="R", help="share of a prompt that is primed")
    add("--repetitions", type=int, default=5, help="of each point (default 5)")
    add("--limit", type=float, default=0.25, help="how far the model may be off (default 0.25)")
    add("--check", action="store_true", help="fail where it is further off")
    add("--dtype", choices=("bf16", "fp32"), default="bf16")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--seed", type=int, default=0)
    add_stack_arguments(parser)
    add("--json", type=Path, help="write all figures here")
    add("--plot", type=Path, help="write a picture here (PNG or SVG)")
    arguments = parser.parse_args()
    check_stack_arguments(parser, arguments)
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if min(arguments.lengths) < 1 or not all(0 <= ratio < 1 for ratio in arguments.ratios):
        parser.error("--lengths must be at least 1, --ratios at least 0 and below 1")
    if len(set(arguments.lengths)) * len(set(arguments.ratios)) < 3:
        parser.error("--lengths and --ratios must make at least 3 points")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
