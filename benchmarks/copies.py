"""What copies between device and host cost on one CPU, and what they cost a decode beside them.

    python -m benchmarks.copies [--repeat N] [--bandwidth-only] [--json PATH] [--plot PATH]

Pools have the shapes of SmolLM2-135M in bf16: 30 layers, 3 KV heads of 64, 23,040 bytes a token. 8,192 tokens (189 MB,
more than any cache) are copied, in runs of 1, 8, 64, 512 and 8,192 slots that lie in random order on both sides (seed
0). `thread` is the copying time that the tickets of a `ThreadTransfer` tell, without rests. Beside it, on the calling
thread: `contiguous` is one torch `copy_` of as many bytes, the limit; `page_first` copies the same runs to and from a
host pool that keeps all of a token together. All are measured in turn in each round; ratios are medians over rounds of
one round's two figures. GB are 10^9 bytes, counted once.

Then a decode step of the real model (8 sequences of 256 tokens, as many compute threads as cores), in turn alone and
beside an endless queue of mirrors in runs of 64 slots, for several duties of the copying thread. The loss is how many
steps per second fewer, as the median over pairs.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.copies_report import plot, show
from benchmarks.decoding import DecodeLoop
from benchmarks.machine import describe_machine, write_report
from hicache.copies.copier import Pace, ThreadTransfer
from hicache.copies.fake_transfer import ignore_done
from hicache.copies.transfer import Copy, Direction, TicketState
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from hicache.tiers.planes import SlotArray

LAYERS = [LayerShape(kv_heads=3, key_dim=64, value_dim=64)] * 30
TOKENS = 8_192
SLOTS = 2 * TOKENS
RUNS = (1, 8, 64, 512, TOKENS)
DUTIES = (0.05, 0.1, 0.2, 1.0)
MIRROR_TOKENS = 2_048
CONTEXT_TOKENS = 256
STEPS = 10  # of a decode, in one measurement


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Medians of one direction and run length, in GB/s; `ratio` is thread / contiguous."""

    direction: str
    run_tokens: int
    thread: float
    contiguous: float
    page_first: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Medians of one duty."""

    duty: float
    loss: float  # of decode steps per second, 0..1
    alone_ms: float
    beside_ms: float
    mirrored_tokens_per_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of copies between device and host.")
    parser.add_argument("--repeat", type=int, default=9, help="rounds of each figure (default 9)")
    parser.add_argument("--bandwidth-only", action="store_true", help="leave out the decode, which loads the model")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--plot", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    console = Console()
    with console.status("measuring") as status:
        bandwidths = measure_bandwidths(arguments.repeat, status.update)
        disturbances = [] if arguments.bandwidth_only else measure_disturbances(arguments.repeat, status.update)
    rows = [asdict(each) for each in bandwidths]
    beside = [asdict(each) for each in disturbances]
    show(console, rows, beside)
    report = {
        "bandwidth_gb_per_s": rows,
        "decode_beside_mirrors": beside,
        "bytes_per_token": 23_040,
        "tokens": TOKENS,
        "machine": describe_machine(),
        "repeat": arguments.repeat,
        "seed": 0,
    }
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        plot(arguments.plot, rows, beside)


# ----------------------------------------------------------------------------------------------------------- bandwidth


def measure_bandwidths(repeat: int, progress: Callable[[str], None]) -> list[Bandwidth]:
    torch.set_num_threads(1)
    progress("allocating pools")
    device_pool = DevicePool(LAYERS, SLOTS, torch.bfloat16, "cpu")
    host_pool = HostPool(LAYERS, SLOTS, torch.bfloat16, pin="never")
    for group in (*device_pool.planes.groups, *host_pool.planes.groups):
        group.normal_()
    transfer = ThreadTransfer(device_pool, host_pool, on_done=ignore_done, pace=Pace(mirror_duty=1.0))
    contiguous = contiguous_copy()
    paged = PageFirst(device_pool)
    results = []
    for direction in Direction:
        for run_tokens in RUNS:
            progress(f"{direction.value}, runs of {run_tokens:,}")
            rng = np.random.default_rng(0)
            copy = Copy(direction, slots_in_runs(run_tokens, rng), slots_in_runs(run_tokens, rng))
            measures = (
                lambda: seconds_of(transfer, copy),  # noqa: B023 - called before the next one
                lambda: timed(contiguous),
                lambda: timed(lambda: paged.copy(copy, run_tokens)),  # noqa: B023
            )
            results.append(bandwidth(direction.value, run_tokens, in_turn(measures, repeat)))
    assert transfer.close(timeout_s=10)
    return results


def bandwidth(direction: str, run_tokens: int, rounds: list[tuple[float, ...]]) -> Bandwidth:
    num_bytes = TOKENS * 23_040
    thread, contiguous, page_first = (num_bytes / statistics.median(each) / 1e9 for each in zip(*rounds, strict=True))
    ratio = statistics.median(limit_s / thread_s for thread_s, limit_s, _ in rounds)
    return Bandwidth(direction, run_tokens, thread, contiguous, page_first, ratio)


def in_turn(measures: tuple[Callable[[], float], ...], repeat: int) -> list[tuple[float, ...]]:
    """Return each measurement's seconds in `repeat` rounds, after one that does not count."""
    rounds = [tuple(measure() for measure in measures) for _ in range(repeat + 1)]
    return rounds[1:]


def slots_in_runs(run_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
    starts = rng.permutation(SLOTS // run_tokens)[: TOKENS // run_tokens] * run_tokens
    return (starts[:, None] + np.arange(run_tokens)).reshape(-1).astype(np.int32)


def seconds_of(transfer: ThreadTransfer, copy: Copy) -> float:
    ticket = transfer.submit(copy)
    while ticket.pending:
        sleep(0.0005)
    assert ticket.state is TicketState.DONE, ticket.error
    return ticket.seconds


def contiguous_copy() -> Callable[[], object]:
    source = torch.zeros(TOKENS * 23_040 // 2, dtype=torch.bfloat16).normal_()
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def timed(operation: Callable[[], object]) -> float:
    start = perf_counter()
    operation()
    return perf_counter() - start


class PageFirst:
    """The other layout of a host pool: [slots, planes], copied by the same means."""

    def __init__(self, device_pool: DevicePool) -> None:
        [self._device] = device_pool.planes.slot_arrays()
        twin = DevicePool(LAYERS, SLOTS, torch.bfloat16, "cpu")
        [array] = twin.planes.slot_arrays()
        self._host: SlotArray = array.reshape(SLOTS, -1)

    def copy(self, copy: Copy, run_tokens: int) -> None:
        for at in range(0, len(copy), run_tokens):
            device, host = int(copy.device_slots[at]), int(copy.host_slots[at])
            of, to = self._device[:, device : device + run_tokens], self._host[host : host + run_tokens]
            if copy.direction is Direction.MIRROR:
                to[:] = of.T
            else:
                of[:] = to.T


# ------------------------------------------------------------------------------------------------- decode beside copies


def measure_disturbances(repeat: int, progress: Callable[[str], None]) -> list[Disturbance]:
    progress("loading the model")
    decoding = DecodeLoop(num_sequences=8, context_tokens=CONTEXT_TOKENS, spare_slots=MIRROR_TOKENS)
    device_pool = decoding.pool
    host_pool = HostPool(device_pool.layers, MIRROR_TOKENS, device_pool.dtype, pin="never")
    results = []
    for duty in DUTIES:
        pairs = []
        for number in range(repeat + 1):
            progress(f"decode beside mirrors at duty {duty:g}, pair {number} of {repeat}")
            alone_s = decoding.seconds_per_step(STEPS)
            with EndlessMirrors(device_pool, host_pool, duty) as mirrors:
                beside_s = decoding.seconds_per_step(STEPS)
                pairs.append((alone_s, beside_s, mirrors.tokens_done / (STEPS * beside_s)))
        pairs = pairs[1:]
        alone_s, beside_s, mirrored = (statistics.median(each) for each in zip(*pairs, strict=True))
        loss = statistics.median(1 - alone / beside for alone, beside, _ in pairs)
        results.append(Disturbance(duty, loss, alone_s * 1e3, beside_s * 1e3, mirrored))
    return results


class EndlessMirrors:
    """Keeps a copying thread busy while the block lasts: always two mirrors queued."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool, duty: float) -> None:
        # Slots that no sequence of the decode uses.
        runs = np.random.default_rng(0).permutation(MIRROR_TOKENS // 64)[:, None] * 64
        slots = (runs + np.arange(64)).reshape(-1).astype(np.int32)
        self._copy = Copy(Direction.MIRROR, slots + np.int32(device_pool.num_slots - MIRROR_TOKENS), slots)
        self.tokens_done = 0
        self._going_on = True
        self._transfer = ThreadTransfer(device_pool, host_pool, on_done=self._next, pace=Pace(mirror_duty=duty))

    def __enter__(self) -> "EndlessMirrors":
        for _ in range(2):
            self._transfer.submit(self._copy)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._going_on = False
        assert self._transfer.close(timeout_s=10)

    def _next(self) -> None:
        if self._going_on:
            self.tokens_done += len(self._copy)
            self._transfer.submit(self._copy)


if __name__ == "__main__":
    main()
