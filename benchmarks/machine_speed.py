"""How fast this machine reads memory and multiplies matrices at best: what the floors of steps are computed from."""

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from hicache.tiers.memory import allocate
from worker.model.linears import PackedLinear

STREAM_BYTES = 1 << 29  # far more than any cache
_PRODUCT = (512, 1024, 1024)  # rows, inputs, outputs


def stream_bytes_per_s(threads: int, *, num_bytes: int = STREAM_BYTES, repeat: int = 7) -> float:
    """Return the largest speed seen at which `threads` threads read memory from one end to the other.

    Two loops of torch's are tried, a sum and a dot product: neither is the faster one everywhere. In huge pages, as
    weights and pools are: in small ones a core reads little more than half as fast.
    """
    numbers = allocate(num_bytes // 8 * 8).view(torch.float32)
    half = len(numbers) // 2
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ways: tuple[Callable[[], object], ...] = (numbers.sum, lambda: torch.dot(numbers[:half], numbers[half:]))
        return num_bytes / min(_fastest_s(way, repeat) for way in ways)
    finally:
        torch.set_num_threads(before)


def product_flop_per_s(dtype: torch.dtype, *, repeat: int = 40) -> float:
    """Return the largest speed seen of a product of middle size, by oneDNN or by what torch takes, as threads are set.

    oneDNN's packed layers are private to torch; without them it is what torch takes.
    """
    rows, inputs, outputs = _PRODUCT
    with torch.inference_mode():
        x = torch.randn(rows, inputs).to(dtype)
        linear = nn.Linear(inputs, outputs, bias=False).to(dtype)
        ways: list[Callable[[], object]] = [lambda: functional.linear(x, linear.weight)]
        try:
            packed = PackedLinear(linear)
            packed(x)
            ways.append(lambda: packed(x))
        except (AttributeError, RuntimeError, NotImplementedError):
            pass
        return 2 * rows * inputs * outputs / min(_fastest_s(way, repeat) for way in ways)


def _fastest_s(work: Callable[[], object], repeat: int) -> float:
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
