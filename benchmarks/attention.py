"""What attention costs in a step of SmolLM2-135M: its 30 layers over a slot pool, without the rest of the model.

    python -m benchmarks.attention [--backends NAME ...] [--only TEXT] [--dtype bf16|fp32] [--scattered]
                                   [--threads N] [--repeat N] [--json PATH]

Milliseconds for one step, planning included, by backend; medians over `--repeat` rounds. In each round every backend
computes the same step on the same pool, one after the other, so that what disturbs the machine disturbs them alike.

    decode CTX xB own       B sequences of CTX tokens with nothing in common decode a token each
    decode CTX xB shared    the same with CTX tokens in common and 16 of their own
    decode CTX xB 4 shared  the same below 4 prefixes, whose sequences take turns in the batch
    prefill 512 over CTX    one prompt computes 512 tokens behind CTX that are there
    prefill 16x32 over CTX  16 prompts compute 32 tokens each behind CTX tokens that they share

Slots lie in runs, as an allocator with room hands them out, or with `--scattered` anywhere. Each layer has memory of
its own as far as 1 GiB goes.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from rich.console import Console

from benchmarks.machine import describe_machine, write_report
from hicache.tiers.device import DevicePool, LayerShape
from worker.attention.backend import AttentionBackend, AttentionShape, LayerKV
from worker.attention.registry import available_backends, backend_by_name
from worker.batch import Batch, Int32Array
from worker.model.hardware import usable_cores

CPU = torch.device("cpu")
NUM_LAYERS = 30
SHAPE = AttentionShape(query_heads=9, kv_heads=3, key_dim=64, value_dim=64, scaling=64**-0.5)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
OWN_TOKENS = 16
MAX_POOL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    prefixes: int  # that sequences share, each of `shared` tokens
    shared: int
    sequences: int
    own: int  # tokens of each sequence beside what it shares
    rows: int  # of these, computed in the step

    @property
    def num_slots(self) -> int:
        return self.prefixes * self.shared + self.sequences * self.own


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of attention by backend.")
    parser.add_argument("--backends", nargs="+", choices=available_backends(CPU), default=available_backends(CPU))
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it")
    parser.add_argument("--dtype", choices=DTYPES, help="default: both")
    parser.add_argument("--scattered", action="store_true", help="slots anywhere in the pool")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = [case for case in cases() if arguments.only in case.name]
    if not chosen:
        parser.error(f"--only: no case is named like {arguments.only!r}")
    console = Console()
    rows = {}
    console.print("ms for 30 layers:", ", ".join(arguments.backends))
    for dtype in [arguments.dtype] if arguments.dtype else DTYPES:
        for case in chosen:
            with console.status(f"{dtype} {case.name}"):
                rows[f"{dtype} {case.name}"] = measure(
                    case, DTYPES[dtype], arguments.backends, arguments.repeat, scattered=arguments.scattered
                )
            figures = "".join(f"{found:10.1f}" for found in rows[f"{dtype} {case.name}"].values())
            console.print(f"{dtype} {case.name:28}{figures}", highlight=False)
    if arguments.json:
        report = {
            "step_ms": rows,
            "scattered": arguments.scattered,
            "threads": arguments.threads,
            "repeat": arguments.repeat,
            "seed": 0,
            "machine": describe_machine(),
        }
        write_report(arguments.json, report)


def cases() -> Iterator[Case]:
    for context in (256, 1500, 4000):
        for sequences in (1, 8, 32):
            yield Case(f"decode {context} x{sequences} own", 0, 0, sequences, context, 1)
        for sequences in (8, 32):
            yield Case(f"decode {context} x{sequences} shared", 1, context, sequences, OWN_TOKENS, 1)
        yield Case(f"decode {context} x32 4 shared", 4, context, 32, OWN_TOKENS, 1)
    for context in (0, 1500, 4000):
        yield Case(f"prefill 512 over {context}", 0, 0, 1, context + 512, 512)
    for context in (1500, 4000):
        yield Case(f"prefill 16x32 over {context}", 1, context, 16, 32, 32)


def measure(
    case: Case, dtype: torch.dtype, backends: Sequence[str], repeat: int, *, scattered: bool
) -> dict[str, float]:
    """Return milliseconds by backend."""
    slots = np.random.default_rng(0).permutation(case.num_slots) if scattered else np.arange(case.num_slots)
    batch = batch_of(case, slots.astype(np.int32))
    layers = _layers(case.num_slots, dtype)
    query = torch.randn(batch.num_tokens, SHAPE.query_heads, SHAPE.key_dim).to(dtype)
    steps = {name: _step(backend_by_name(name, CPU), batch, query, layers) for name in backends}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(repeat):
        for name, step in steps.items():
            start = perf_counter()
            step()
            times[name].append(perf_counter() - start)
    return {name: statistics.median(found) * 1e3 for name, found in times.items()}


def _step(
    backend: AttentionBackend, batch: Batch, query: torch.Tensor, layers: Sequence[LayerKV]
) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            plan = backend.plan(batch)
            for layer in range(NUM_LAYERS):
                plan.run(SHAPE, query, layers[layer % len(layers)], None)

    return run


def _layers(num_slots: int, dtype: torch.dtype) -> list[LayerKV]:
    layer = LayerShape(SHAPE.kv_heads, SHAPE.key_dim, SHAPE.value_dim)
    layer_bytes = num_slots * SHAPE.kv_heads * (SHAPE.key_dim + SHAPE.value_dim) * dtype.itemsize
    pool = DevicePool([layer] * max(1, min(NUM_LAYERS, MAX_POOL_BYTES // layer_bytes)), num_slots, dtype, CPU)
    held = [LayerKV(pool.key(index), pool.value(index)) for index in range(len(pool.layers))]
    # What is computed costs the same whatever the numbers are, as long as they are numbers: a few will do.
    some = torch.randn(1024, SHAPE.kv_heads, SHAPE.key_dim).to(dtype)
    for kv in held:
        for begin in range(0, num_slots, len(some)):
            kv.keys[begin : begin + len(some)] = some[: num_slots - begin]
            kv.values[begin : begin + len(some)] = some[: num_slots - begin]
    return held


def batch_of(case: Case, slots: Int32Array) -> Batch:
    prefixes = slots[: case.prefixes * case.shared].reshape(case.prefixes, case.shared)
    owns = slots[case.prefixes * case.shared :].reshape(case.sequences, case.own)
    paths = [
        np.concatenate([prefixes[index % case.prefixes], own]) if case.prefixes else own
        for index, own in enumerate(owns)
    ]
    length = case.shared + case.own
    sequences = np.arange(case.sequences + 1)
    return Batch(
        token_ids=np.zeros(case.sequences * case.rows, np.int32),
        positions=np.tile(np.arange(length - case.rows, length), case.sequences).astype(np.int32),
        out_slots=np.concatenate([path[-case.rows :] for path in paths]).astype(np.int32),
        qo_indptr=(sequences * case.rows).astype(np.int32),
        kv_indptr=(sequences * length).astype(np.int32),
        kv_indices=np.concatenate(paths).astype(np.int32),
        samples=(),
    )


if __name__ == "__main__":
    main()
