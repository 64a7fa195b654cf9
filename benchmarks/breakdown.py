"""Where the time of a step goes, and what it would take at least: model, attention, sampling, engine, transport.

    GOMP_SPINCOUNT=20000 python -m benchmarks.breakdown --json out.json [--dtypes bf16 fp32] [--no-live]

Decode steps of 1, 8 and 32 sequences behind 1,500 tokens of their own or in common, and chunks of 512 behind 0, 1,500
and 3,500 tokens: the whole pass and its parts (`breakdown_steps`), beside a floor from what this machine reads and
multiplies (`floors`, `machine_speed`). Then real engines that decode: what they take beyond their passes. All of that
in one process; with the variable its compute threads spin as a worker's do. Last a stack, and what transport takes of
a request (`breakdown_live`).

`engine_overhead_share` in the JSON is the part of a decode step of 32 sequences that is neither model nor attention:
scheduling, packing, text, counts, messages, and sampling.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from benchmarks import breakdown_report, step
from benchmarks.breakdown_live import measure_live
from benchmarks.breakdown_steps import BATCHES, CONTEXT, measure_steps
from benchmarks.floors import ModelSizes, Speed
from benchmarks.machine import describe_machine, write_report
from benchmarks.machine_speed import product_flop_per_s, stream_bytes_per_s
from benchmarks.stack import settings
from worker.config import ModelConfig
from worker.engine.delivery import Delivery
from worker.engine.executors import InlineExecutor
from worker.model.hardware import usable_cores
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

LIVE_OUTPUT = 64
_MIN_ENGINE_CONTEXT = 101  # `benchmarks.step` gives each sequence 100 tokens of its own


def main() -> None:
    arguments = _parse()
    load_before = os.getloadavg()[0]
    console = Console(stderr=True, highlight=False)
    torch.set_num_threads(arguments.threads)
    bandwidths = {str(threads): stream_bytes_per_s(threads) for threads in sorted({1, arguments.threads})}
    numbers = {dtype: _measure(dtype, bandwidths, arguments, console) for dtype in arguments.dtypes}
    first = next(iter(numbers))
    report: dict[str, Any] = {
        "engine_overhead_share": numbers[first]["engine"]["32"]["overhead_share_with_sampling"],
        "bandwidth_bytes_per_s": bandwidths,
        "numbers": numbers,
    }
    if arguments.live:
        console.print(f"{first}: through the whole stack")
        chosen = settings(worker__model__dtype=first, worker__model__threads=arguments.threads, log__level="warning")
        context, output = round(CONTEXT * arguments.scale), max(2, round(LIVE_OUTPUT * arguments.scale))
        report["live"] = measure_live(BATCHES, context, output, [*chosen, *arguments.serve_argument])
    report |= {
        # Of OpenMP, as far as a worker sets it; its threads spin and sleep by it.
        "environment": {name: os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")},
        "settings": {
            name: getattr(arguments, name) for name in ("threads", "repeat", "steps", "scale", "serve_argument")
        },
        "load_average_before": load_before,
        "machine": describe_machine(),
    }
    breakdown_report.print_tables(report, Console())
    if arguments.json:
        write_report(arguments.json, report)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--dtypes",
        nargs="+",
        choices=("bf16", "fp32"),
        default=["bf16", "fp32"],
        help="the first one's stack runs, too",
    )
    add("--threads", type=int, default=usable_cores())
    add("--repeat", type=int, default=15, help="rounds of each step (default 15)")
    add("--steps", type=int, default=60, help="of each engine (default 60)")
    add("--scale", type=float, default=1.0, help="times contexts and chunks, to try it out (default 1)")
    add("--live", action=argparse.BooleanOptionalAction, default=True, help="start a stack for transport")
    add("--serve-argument", action="append", default=[], help="handed on to `radixgate serve`")
    add("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.steps, arguments.threads) < 1 or not 0 < arguments.scale <= 1:
        parser.error("--repeat, --steps and --threads must be at least 1, --scale above 0 and at most 1")
    return arguments


def _measure(
    dtype: str, bandwidths: dict[str, float], arguments: argparse.Namespace, console: Console
) -> dict[str, Any]:
    console.print(f"{dtype}: steps and their parts")
    model = load_model(ModelConfig(dtype=dtype, threads=arguments.threads), SilentProgress())  # type: ignore[arg-type]
    speed = Speed(max(bandwidths.values()), product_flop_per_s(model.dtype))
    sizes = ModelSizes.of(json.loads((model.folder.path / "config.json").read_text()))
    steps = measure_steps(model, sizes, speed, arguments.scale, arguments.repeat)
    console.print(f"{dtype}: engines that decode")
    context = max(_MIN_ENGINE_CONTEXT, round(CONTEXT * arguments.scale))
    engine = {
        str(batch): measure_engine(model, batch, context, arguments.steps, steps[f"decode x{batch} own"]["sampling_ms"])
        for batch in BATCHES
    }
    return {"flop_per_s": speed.flop_per_s, "weights": sizes.linear_weights, "steps": steps, "engine": engine}


def measure_engine(model: LoadedModel, batch: int, context: int, steps: int, sampling_ms: float) -> dict[str, Any]:
    """Return medians over the decode steps of a real engine with real passes, which run in its own thread.

    Its sequences share all but 100 tokens of their context. `parts_us` is what the same engine spends beside passes
    that cost nothing.
    """
    options = step.Options(batch, context, steps)
    num_slots = step.pool_slots(options)
    timed = step.TimedExecutor(model.executor(model.pool(num_slots)))
    engine, _ = step.build(model, InlineExecutor(timed), options, num_slots)
    delivery = Delivery(step.Messenger().deliver, "benchmark-delivery")
    delivery.start()
    walls, passes = [], []
    for _ in range(steps):
        timed.seconds, start = 0.0, time.perf_counter()
        step.make_step(engine, delivery.put)
        walls.append(1e3 * (time.perf_counter() - start))
        passes.append(1e3 * timed.seconds)
    delivery.close(timeout_s=5.0)
    return engine_figures(walls, passes, sampling_ms) | {"parts_us": step.measure_parts(model, options)}


def engine_figures(walls: Sequence[float], passes: Sequence[float], sampling_ms: float) -> dict[str, float]:
    """Return medians of milliseconds; shares are of a step's own wall time."""
    pairs = list(zip(walls, passes, strict=True))
    return {
        "wall_ms": median(walls),
        "pass_ms": median(passes),
        "overhead_ms": median(wall - spent for wall, spent in pairs),
        "overhead_share": median((wall - spent) / wall for wall, spent in pairs),
        "overhead_share_with_sampling": median((wall - spent + sampling_ms) / wall for wall, spent in pairs),
    }


if __name__ == "__main__":
    main()
