"""Figures of one NVIDIA GPU: decode and prefill by backend, copies, and load-backs beside a decode.

    python -m benchmarks.gpu_figures PART --json PATH      one part: versions, attention, steps, copies or beside
    python -m benchmarks.gpu_figures merge --json PATH FILE...

`benchmarks/gpu.sh` runs all parts, each with a time-out of its own, and merges what there is. The model is
SmolLM2-135M in bf16. Times are medians; a step ends when its tokens are on the host. GB are 10^9 bytes.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch

from benchmarks.machine import describe_machine, write_report
from hicache.copies.cuda_copier import CudaTransfer
from hicache.copies.fake_transfer import ignore_done
from hicache.copies.transfer import Copy, Direction, Ticket, TicketState
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool, Pin
from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.registry import available_backends, backend_by_name
from worker.batch import Batch, SampleRow, SamplingParams
from worker.config import ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

Figure = dict[str, object]

CUDA = torch.device("cuda", 0)
LAYERS = [LayerShape(kv_heads=3, key_dim=64, value_dim=64)] * 30
SHAPE = AttentionShape(query_heads=9, kv_heads=3, key_dim=64, value_dim=64, scaling=0.125)
GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)
# (tokens cached, tokens computed now) of each sequence
WORK = {
    "decode B=1 ctx 256": ((255, 1),),
    "decode B=1 ctx 1500": ((1_499, 1),),
    "decode B=32 ctx 256": ((255, 1),) * 32,
    "decode B=32 ctx 1500": ((1_499, 1),) * 32,
    "prefill 512 behind 0": ((0, 512),),
    "prefill 512 behind 1500": ((1_500, 512),),
    "prefill 2048 behind 0": ((0, 2_048),),
}
POOL_SLOTS = 65_536
COPY_TOKENS = 16_384
RUNS = (1, 16, 256, COPY_TOKENS)
ROUNDS = 15


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Figures of one NVIDIA GPU.")
    parser.add_argument("part", choices=[*PARTS, "merge"])
    parser.add_argument("files", nargs="*", type=Path, help="what to merge")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH")
    parsed = parser.parse_args(arguments)
    if parsed.part == "merge":
        write_report(parsed.json, {file.stem: json.loads(file.read_text()) for file in parsed.files})
        return 0
    if not torch.cuda.is_available():
        print(f"no CUDA device: torch {torch.__version__} finds none", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for figure in PARTS[parsed.part]():
        print(json.dumps(figure))
        figures.append(figure)
        # After each one: a part that runs out of time leaves what it has.
        write_report(parsed.json, figures)
    return 0


def versions() -> Iterator[Figure]:
    """What the figures were taken with."""
    names = ("flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin", "radixgate")
    found = {name: next((each.version for each in metadata.distributions(name=name)), None) for name in names}
    properties = torch.cuda.get_device_properties(CUDA)
    yield {
        **describe_machine(),
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "more_packages": found,
        "backends": available_backends(CUDA),
    }


# ----------------------------------------------------------------------------------------------------------- attention


def attention() -> Iterator[Figure]:
    """Plan and run of 30 layers, without the model, scattered slots."""
    rng = np.random.default_rng(0)
    pool = DevicePool(LAYERS, POOL_SLOTS, torch.bfloat16, CUDA)
    layers = [LayerKV(pool.key(index), pool.value(index)) for index in range(len(LAYERS))]
    for name in backends():
        backend = backend_by_name(name, CUDA)
        for work, chunks in WORK.items():
            batch = batch_of(chunks, rng)
            query = torch.randn(batch.num_tokens, 9, 64, device=CUDA).to(torch.bfloat16)

            def once(batch: Batch = batch, query: torch.Tensor = query) -> None:
                plan = backend.plan(batch)  # noqa: B023 - called before the next one
                for layer in layers:
                    plan.run(SHAPE, query, layer, None)
                torch.cuda.synchronize(CUDA)

            yield {"backend": name, "work": work, "ms": median_ms(once)}


# --------------------------------------------------------------------------------------------------------------- steps


def steps() -> Iterator[Figure]:
    """Whole steps of the executor: forward pass and greedy choice."""
    rng = np.random.default_rng(0)
    for name in backends():
        executor = bf16_model(name).executor
        run = executor(DevicePool(LAYERS, POOL_SLOTS, torch.bfloat16, CUDA)).run
        for work, chunks in WORK.items():
            batch = batch_of(chunks, rng)
            ms = median_ms(lambda: run(batch))  # noqa: B023 - called before the next one
            tokens = sum(new for _, new in chunks)
            yield {"backend": name, "work": work, "ms": ms, "tokens_per_s": round(tokens / ms * 1e3)}
        torch.cuda.empty_cache()


# -------------------------------------------------------------------------------------------------------------- copies


def copies() -> Iterator[Figure]:
    """What tickets tell of copies of 16,384 tokens (377 MB), in runs in random order on both sides."""
    pins: tuple[Pin, ...] = ("require", "never")
    for pin in pins:
        with transferring(POOL_SLOTS, pin) as (_, transfer):
            for direction in Direction:
                for run_tokens in RUNS:
                    copy = Copy(direction, in_runs(run_tokens, 1), in_runs(run_tokens, 2))
                    seconds = statistics.median(seconds_of(transfer, copy) for _ in range(5))
                    yield {
                        "pinned": pin == "require",
                        "direction": direction.value,
                        "run_tokens": run_tokens,
                        "gb_per_s": round(COPY_TOKENS * 23_040 / seconds / 1e9, 2),
                    }


# -------------------------------------------------------------------------------------------------------------- beside


def beside() -> Iterator[Figure]:
    """A decode of 32 sequences alone, and beside copies that never stop."""
    model = bf16_model("auto")
    batch = batch_of(WORK["decode B=32 ctx 1500"], np.random.default_rng(0))
    with transferring(2 * POOL_SLOTS, "require") as (pool, transfer):
        run = model.executor(pool).run
        for direction in Direction:
            # Slots that the decode does not use.
            copy = Copy(direction, in_runs(256, 1) + np.int32(POOL_SLOTS), in_runs(256, 2))
            alone = median_ms(lambda: run(batch))
            tickets = [transfer.submit(copy)]

            def with_copies(tickets: list[Ticket] = tickets, copy: Copy = copy) -> None:
                if not tickets[-1].pending:
                    tickets.append(transfer.submit(copy))
                run(batch)

            together = median_ms(with_copies)
            moved = len(tickets) * COPY_TOKENS
            yield {"direction": direction.value, "alone_ms": alone, "beside_ms": together, "tokens_moved": moved}
            while tickets[-1].pending:
                sleep(0.001)


# --------------------------------------------------------------------------------------------------------------- pieces


def backends() -> list[str]:
    """Those that there are; FlashInfer, which compiles its kernels first, takes none of the others' time."""
    return sorted(available_backends(CUDA), key=lambda name: name == "flashinfer")


def bf16_model(attention: str) -> LoadedModel:
    return load_model(
        ModelConfig(device=str(CUDA), dtype="bf16", attention=attention),  # type: ignore[arg-type]
        SilentProgress(),
    )


def batch_of(chunks: tuple[tuple[int, int], ...], rng: np.random.Generator) -> Batch:
    """A step of sequences that share nothing; their slots lie scattered in the first POOL_SLOTS."""
    kv_indptr = np.cumsum([0, *(cached + new for cached, new in chunks)]).astype(np.int32)
    qo_indptr = np.cumsum([0, *(new for _, new in chunks)]).astype(np.int32)
    slots = rng.permutation(POOL_SLOTS)[: kv_indptr[-1]].astype(np.int32)
    ends = kv_indptr[1:].tolist()
    return Batch(
        token_ids=np.full(int(qo_indptr[-1]), 100, dtype=np.int32),
        positions=np.concatenate([np.arange(c, c + n, dtype=np.int32) for c, n in chunks]),
        out_slots=np.concatenate([slots[end - new : end] for end, (_, new) in zip(ends, chunks, strict=True)]),
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=slots,
        samples=tuple(
            SampleRow(int(row) - 1, GREEDY, cached + new, np.zeros(1, dtype=np.int32), [])
            for row, (cached, new) in zip(qo_indptr[1:], chunks, strict=True)
        ),
    )


def median_ms(operation: Callable[[], object]) -> float:
    """The first calls compile and fill caches: they do not count."""
    for _ in range(3):
        operation()
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        operation()
        times.append(perf_counter() - start)
    return round(statistics.median(times) * 1e3, 3)


def in_runs(run_tokens: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    starts = np.random.default_rng(seed).permutation(POOL_SLOTS // run_tokens)[: COPY_TOKENS // run_tokens]
    return (starts[:, None] * run_tokens + np.arange(run_tokens)).reshape(-1).astype(np.int32)


@contextmanager
def transferring(num_slots: int, pin: Pin) -> Iterator[tuple[DevicePool, CudaTransfer]]:
    """A device pool of so many slots, a host pool, and what copies between them."""
    pool = DevicePool(LAYERS, num_slots, torch.bfloat16, CUDA)
    transfer = CudaTransfer(pool, HostPool(LAYERS, POOL_SLOTS, torch.bfloat16, pin=pin), on_done=ignore_done)
    try:
        yield pool, transfer
    finally:
        transfer.close(timeout_s=30)


def seconds_of(transfer: CudaTransfer, copy: Copy) -> float:
    ticket = transfer.submit(copy)
    while ticket.pending:
        sleep(0.0002)
    if ticket.state is not TicketState.DONE:
        raise RuntimeError(ticket.error)
    return ticket.seconds


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "versions": versions,
    "attention": attention,
    "steps": steps,
    "copies": copies,
    "beside": beside,
}

if __name__ == "__main__":
    sys.exit(main())
