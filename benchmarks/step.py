"""What the engine itself costs a decode step, beside the model: by part, and what is left of it beside a real pass.

    python -m benchmarks.step [--sequences N] [--context N] [--steps N] [--free-only] [--json PATH]

First with an executor that costs nothing: a real engine, cache, observer (Prometheus), tokenizer and messages; the
sequences share a system prompt and decode at about the given context. Each part is timed without the parts below it;
the figures are medians over steps. `before`, `after`: what the forward pass has to wait for, in front of it and behind
it. `beside`: what is done while the next pass runs (text, counts, outputs, messages).

Then with the real model, in turn by blocks of steps: passes run in the engine's own thread (`inline`), and on a thread
of their own with everything `beside` meanwhile (`thread`), driven as `EngineThread` does. Passes of one block see
longer contexts than those of the one before, so blocks are compared in pairs that alternate in order. `overhead` is a
step's wall time without the time inside of `Executor.run`.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.machine import describe_machine, write_report
from benchmarks.workloads import TokenText, document
from hicache.cache import PrefixCache
from hicache.keys import Namespace, PrefixKey
from metrics.worker import WorkerMetrics
from radixgate.v1 import worker_pb2
from worker.batch import AsyncExecutor, Batch, Executor, PendingStep, SampledToken, SamplingParams
from worker.config import EngineConfig, ModelConfig
from worker.engine import Engine, Load, ModelLimits, Request, SequenceOutput
from worker.engine.delivery import Deliver, Delivery
from worker.engine.executors import InlineExecutor, ThreadExecutor
from worker.engine.ports import CacheNews
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress
from worker.rpc.translate import load_message, output_message

PARTS = {
    "before": ("tick", "schedule", "batch", "begin"),
    "after": ("commit", "complete"),
    "beside": ("text", "tell", "outputs", "observe", "message"),
}
BLOCK_STEPS = 6


@dataclass(frozen=True, slots=True)
class Options:
    sequences: int
    context: int
    steps: int


class FreeExecutor:
    """Samples tokens of running text at no cost."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._tokens = [SampledToken(token_id) for token_id in token_ids]
        self._next = 0

    def run(self, batch: Batch) -> list[SampledToken]:
        start = self._next % (len(self._tokens) // 2)
        self._next += len(batch.samples)
        return self._tokens[start : start + len(batch.samples)]


class TimedExecutor:
    """Keeps how long passes take."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.seconds = 0.0

    def run(self, batch: Batch) -> list[SampledToken]:
        start = time.perf_counter()
        result = self._executor.run(batch)
        self.seconds += time.perf_counter() - start
        return result


class SwitchedExecutor:
    """Starts passes in the way that was chosen last."""

    def __init__(self, ways: Mapping[str, AsyncExecutor]) -> None:
        self._ways = ways
        self.way = next(iter(ways))

    def start(self, batch: Batch) -> PendingStep:
        return self._ways[self.way].start(batch)


class Stopwatch:
    """Time by part, each without the parts that run inside of it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def watch(self, owner: object, method: str, part: str) -> None:
        """From now on count what `owner.method()` takes as `part`. For measuring only: it replaces the method."""
        inner: Callable[..., object] = getattr(owner, method)

        def timed(*args: object, **kwargs: object) -> object:
            self._switch()
            self._running.append(part)
            try:
                return inner(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        setattr(owner, method, timed)

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


class Messenger:
    """Makes of outputs what goes to a gateway."""

    def deliver(self, outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
        told = load_message(load, 0, stalled_s=0.0, draining=False)
        message = worker_pb2.ConnectResponse(outputs=map(output_message, outputs), load=told)
        message.SerializeToString()


def build(model: LoadedModel, executor: AsyncExecutor, options: Options, num_slots: int) -> tuple[Engine, PrefixCache]:
    """Return an engine whose sequences all decode, just below `options.context`."""
    cache = PrefixCache(num_slots)
    limits = ModelLimits(model.info.vocab_size, model.info.context_length, model.info.eos_token_ids)
    config = EngineConfig(max_running=options.sequences, max_step_tokens=max(512, options.sequences))
    observer = WorkerMetrics("benchmark")
    engine = Engine(cache, executor, model.text, limits, config, observer=observer, clock=time.monotonic)
    text = running_text(model)
    system = text.cut(options.context - 100)
    for number in range(options.sequences):
        tokens = np.array(system + text.cut(100), dtype=np.int32)
        params = SamplingParams(max_new_tokens=num_new_tokens(options), temperature=0.0, ignore_eos=True)
        key = PrefixKey.of(Namespace(bytes(16)), tokens)
        engine.submit(Request((0, number), f"r{number}", key, params, tenant="benchmark"), time.monotonic())
    while engine.load().waiting or engine.last_step_tokens != options.sequences:
        engine.step(time.monotonic())
    return engine, cache


def running_text(model: LoadedModel) -> TokenText:
    tokenizer = Tokenizer.from_str(model.info.tokenizer_json.decode())
    return TokenText(tokenizer.encode(document()).ids, seed=0)


def num_new_tokens(options: Options) -> int:
    """More than all measured steps need, and those in which the others still start."""
    return 2 * options.steps + 4 * options.sequences + 200


def pool_slots(options: Options) -> int:
    return options.sequences * (options.context + num_new_tokens(options))


def measure_parts(model: LoadedModel, options: Options) -> dict[str, float]:
    """Return the median microseconds of each part of a step whose forward pass costs nothing."""
    free = FreeExecutor(running_text(model).cut(4096))
    engine, cache = build(model, InlineExecutor(free), options, pool_slots(options))
    messenger, watch = Messenger(), Stopwatch()
    watched = (
        (cache, "tick", "tick"),
        (engine._scheduler, "schedule", "schedule"),
        (engine._scheduler, "commit", "commit"),
        (engine._batches, "build", "batch"),
        (engine._telling, "read", "text"),
        (engine._telling, "make", "tell"),
        (free, "run", "executor"),
        (engine, "begin", "begin"),
        (engine, "complete", "complete"),
        (engine, "observe_state", "observe"),
        (engine, "take_outputs", "outputs"),
        (messenger, "deliver", "message"),
    )
    for owner, method, part in watched:
        watch.watch(owner, method, part)
    steps: list[dict[str, float]] = []
    make_step(engine, messenger.deliver)  # so that each of the others has one before it to tell of
    for _ in range(options.steps):
        watch.seconds.clear()
        make_step(engine, messenger.deliver)
        steps.append(dict(watch.seconds))
    return {part: round(1e6 * median(step.get(part, 0.0) for step in steps), 1) for part in steps[0]}


def make_step(engine: Engine, deliver: Deliver) -> None:
    """What `EngineThread` does for a step."""
    engine.begin(time.monotonic())
    engine.observe_state()
    deliver(engine.take_outputs(), engine.load(), engine.take_cache_news())
    engine.complete()


@dataclass(frozen=True, slots=True)
class Way:
    """Medians over blocks, in milliseconds a step."""

    wall_ms: float
    pass_ms: float
    overhead_ms: float
    overhead_share: float  # of the wall time


def measure_overlap(model: LoadedModel, options: Options) -> dict[str, object]:
    """Return what steps with real forward passes cost in either way, and the medians of pairs."""
    timed = TimedExecutor(model.executor(model.pool(pool_slots(options))))
    thread = ThreadExecutor(timed)
    switch = SwitchedExecutor({"inline": InlineExecutor(timed), "thread": thread})
    engine, _ = build(model, switch, options, pool_slots(options))
    delivery = Delivery(Messenger().deliver, "benchmark-delivery")
    delivery.start()
    walls: defaultdict[str, list[float]] = defaultdict(list)
    passes: defaultdict[str, list[float]] = defaultdict(list)
    orders = (("inline", "thread"), ("thread", "inline"))
    for index in range(max(2, options.steps // (2 * BLOCK_STEPS))):
        for way in orders[index % 2]:
            switch.way, timed.seconds = way, 0.0
            start = time.perf_counter()
            for _ in range(BLOCK_STEPS):
                make_step(engine, delivery.put)
            walls[way].append(1e3 * (time.perf_counter() - start) / BLOCK_STEPS)
            passes[way].append(1e3 * timed.seconds / BLOCK_STEPS)
    delivery.close(timeout_s=5.0)
    thread.close()
    pairs = [inline / beside for inline, beside in zip(walls["inline"], walls["thread"], strict=True)]
    report: dict[str, object] = {way: asdict(_way(walls[way], passes[way])) for way in walls}
    return {**report, "inline_wall_over_thread_wall": round(median(pairs), 4)}


def _way(walls: list[float], passes: list[float]) -> Way:
    overheads = [wall - spent for wall, spent in zip(walls, passes, strict=True)]
    shares = [overhead / wall for overhead, wall in zip(overheads, walls, strict=True)]
    return Way(round(median(walls), 3), round(median(passes), 3), round(median(overheads), 3), round(median(shares), 4))


def show(parts: Mapping[str, float], overlap: Mapping[str, object]) -> None:
    table = Table("when", "part", "µs a step", title="The engine's own share, forward passes at no cost")
    for when, names in PARTS.items():
        for name in names:
            table.add_row(when, name, f"{parts[name]:.1f}")
        table.add_row(when, "all", f"{sum(parts[name] for name in names):.1f}", end_section=True, style="bold")
    Console().print(table)
    if overlap:
        Console().print_json(data=overlap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--context", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--free-only", action="store_true", help="leave the real forward passes out")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    options = Options(arguments.sequences, arguments.context, arguments.steps)
    model = load_model(ModelConfig(), SilentProgress())
    parts = measure_parts(model, options)
    overlap = {} if arguments.free_only else measure_overlap(model, options)
    show(parts, overlap)
    if arguments.json is not None:
        report = {"machine": describe_machine(), "options": asdict(options), "parts_us": parts, "overlap": overlap}
        write_report(arguments.json, report)


if __name__ == "__main__":
    main()
