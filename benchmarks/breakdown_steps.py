"""What forward passes spend their time on: the whole of one, and its parts each alone, on one pool and in turn.

Parts of a pass cannot be timed from outside, so each is run alone: attention over the same slots; the pass as it is
when every row sees nothing but itself, without what attention costs then (the linear layers, norms and rotations);
sampling. What the whole takes beyond these is `rest`; it is negative where a part alone finds its operands in worse
places than in company.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.attention import CPU, OWN_TOKENS, Case, batch_of
from benchmarks.floors import Floor, ModelSizes, Speed, StepShape, floor
from hicache.tiers.device import DevicePool
from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.registry import AUTO, backend_by_name
from worker.batch import Batch, SampleRow, SamplingParams
from worker.model.executor import ModelExecutor
from worker.model.loading import LoadedModel
from worker.model.sampling import sample

CONTEXT = 1500
CHUNK = 512
PREFIXES = (0, 1500, 3500)
BATCHES = (1, 8, 32)
_GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)

Figures = dict[str, Any]


def cases(scale: float) -> Iterator[Case]:
    """The steps that are looked into; contexts and chunks times `scale`."""
    context, chunk = max(2, round(CONTEXT * scale)), max(1, round(CHUNK * scale))
    for sequences in BATCHES:
        yield Case(f"decode x{sequences} own", 0, 0, sequences, context, 1)
    for sequences in BATCHES[1:]:
        yield Case(f"decode x{sequences} shared", 1, context, sequences, OWN_TOKENS, 1)
    for prefix in PREFIXES:
        yield Case(f"prefill {CHUNK} over {prefix}", 0, 0, 1, round(prefix * scale) + chunk, chunk)


def measure_steps(model: LoadedModel, sizes: ModelSizes, speed: Speed, scale: float, repeat: int) -> dict[str, Figures]:
    """Return milliseconds by part for each case, medians over `repeat` rounds, and beside them the floor."""
    chosen = list(cases(scale))
    executor = model.executor(_filled_pool(model, max(case.num_slots for case in chosen)))
    found = {}
    for case in chosen:
        parts = _Parts(case, executor, sizes)
        shape = StepShape.of(parts.batch)
        least = floor(sizes, shape, speed, model.dtype.itemsize)
        found[case.name] = figures(measure_rounds(parts, repeat), least) | {"rows": shape.rows}
    return found


def _filled_pool(model: LoadedModel, num_slots: int) -> DevicePool:
    """What is computed costs the same whatever the numbers are, as long as they are numbers."""
    pool = model.pool(num_slots)
    for layer in range(len(pool.layers)):
        for plane in (pool.key(layer), pool.value(layer)):
            some = torch.randn(1024, *plane.shape[1:]).to(plane.dtype)
            for begin in range(0, num_slots, len(some)):
                plane[begin : begin + len(some)] = some[: num_slots - begin]
    return pool


class _Parts:
    """One step, and its parts as things to run."""

    def __init__(self, case: Case, executor: ModelExecutor, sizes: ModelSizes) -> None:
        self.batch = sampled(batch_of(case, np.arange(case.num_slots, dtype=np.int32)))
        rows, samples = self.batch.num_tokens, len(self.batch.samples)
        lonely = sampled(batch_of(Case("", 0, 0, rows, 1, 1), np.arange(rows, dtype=np.int32)))
        self._lonely = replace(lonely, samples=lonely.samples[-samples:])
        self._executor = executor
        self._sizes = sizes
        pool = executor.pool
        self._layers = [LayerKV(pool.key(index), pool.value(index)) for index in range(len(pool.layers))]
        self._backend = backend_by_name(AUTO, CPU)
        self._query = torch.randn(rows, sizes.query_heads, sizes.head_dim).to(pool.dtype)
        self._logits = torch.randn(samples, sizes.vocabulary)

    def whole(self) -> None:
        self._executor.run(self.batch)

    def attention(self) -> None:
        self._attend(self.batch)

    def alone(self) -> None:
        """The pass of as many rows that see themselves only, without sampling."""
        self._executor.logits(self._lonely)

    def attention_alone(self) -> None:
        self._attend(self._lonely)

    def sampling(self) -> None:
        with torch.inference_mode():
            sample(self._logits, self.batch.samples)

    def _attend(self, batch: Batch) -> None:
        sizes = self._sizes
        shape = AttentionShape(
            sizes.query_heads, sizes.kv_heads, sizes.head_dim, sizes.head_dim, scaling=sizes.head_dim**-0.5
        )
        with torch.inference_mode():
            plan = self._backend.plan(batch)
            for kv in self._layers:
                plan.run(shape, self._query, kv, None)


def sampled(batch: Batch) -> Batch:
    """Let the last row of each sequence sample, greedily."""
    prompt = np.zeros(1, dtype=np.int32)
    rows = (batch.qo_indptr[1:] - 1).tolist()
    samples = tuple(SampleRow(row, _GREEDY, int(batch.positions[row]) + 1, prompt, []) for row in rows)
    return replace(batch, samples=samples)


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds of one round, in which everything ran once."""

    whole: float
    attention: float
    alone: float
    attention_alone: float
    sampling: float

    @property
    def linear(self) -> float:
        return self.alone - self.attention_alone

    @property
    def rest(self) -> float:
        return self.whole - self.attention - self.linear - self.sampling


def measure_rounds(parts: _Parts, repeat: int) -> list[Round]:
    works = (parts.whole, parts.attention, parts.alone, parts.attention_alone, parts.sampling)
    for work in works:
        work()
    return [Round(*(_milliseconds(work) for work in works)) for _ in range(repeat)]


def figures(rounds: Sequence[Round], least: Floor) -> Figures:
    """Return the medians; those of differences are taken within rounds."""
    whole = median(each.whole for each in rounds)
    return {
        "measured_ms": whole,
        "attention_ms": median(each.attention for each in rounds),
        "linear_ms": median(each.linear for each in rounds),
        "sampling_ms": median(each.sampling for each in rounds),
        "rest_ms": median(each.rest for each in rounds),
        "floor_ms": least.whole_ms,
        "floor_linear_ms": least.linear_ms,
        "floor_attention_ms": least.attention_ms,
        "measured_to_floor": whole / least.whole_ms,
    }


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)
