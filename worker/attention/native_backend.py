"""The backend of native code: CPU only, and for number formats that the processor multiplies itself.

A row's result is defined by blocks of keys at fixed positions (`worker/native/src/plan.h`): whether its prompt was cut
into chunks, how much of it was cached, who else is in the batch and whether a prefix was computed for several
sequences at once, the result has the same bits.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.sharing import shared_ranges
from worker.batch import Batch
from worker.native import structures
from worker.native.library import (
    BLOCK_TOKENS,
    Handle,
    Kernels,
    NumberFormat,
    Plan,
    Ranges,
    kernels,
    why_no_kernels,
)

_NUMBER_FORMATS = {torch.float32: NumberFormat.FLOAT32, torch.bfloat16: NumberFormat.BFLOAT16}
MIN_SHARED_ROWS = 2


def why_unavailable(device: torch.device) -> str | None:
    """Return why this backend cannot run on `device`, or None if it can."""
    if device.type != "cpu":
        return f"native kernels run on the CPU, not on {device.type}"
    return why_no_kernels()


def native_plan(native: Kernels, batch: Batch) -> Plan:
    """Plan a batch, with what its sequences share computed once."""
    ranges = shared_ranges(batch, min_tokens=BLOCK_TOKENS, min_rows=MIN_SHARED_ROWS, multiple_of=BLOCK_TOKENS)
    return native.plan(
        batch,
        Ranges([each.sequences for each in ranges], [each.first for each in ranges], [each.end for each in ranges]),
    )


def native_shape(shape: AttentionShape) -> structures.AttentionShape:
    return structures.AttentionShape(
        shape.query_heads,
        shape.kv_heads,
        shape.key_dim,
        shape.value_dim,
        shape.scaling,
        shape.window or 0,
        shape.softcap or 0.0,
    )


class NativeBackend:
    def __init__(self, device: torch.device, native: Kernels | None = None) -> None:
        """Raises ValueError where `why_unavailable` has something to say. `native`: other kernels than the best."""
        reason = why_unavailable(device)
        native = native or kernels()
        if native is None or device.type != "cpu":
            raise ValueError(f"native attention is not available: {reason}")
        self._native = native
        self._space = native.attention_space()

    def plan(self, batch: Batch) -> "NativePlan":
        return NativePlan(self._native, native_plan(self._native, batch), self._space)


class NativePlan:
    def __init__(self, native: Kernels, plan: Plan, space: Handle) -> None:
        self._native = native
        self._plan = plan
        self._space = space

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        reason = why_unsuited(self._native, query.dtype, (shape,))
        if reason is not None:
            raise ValueError(reason)
        number = number_format(self._native, query.dtype)
        query = query.contiguous()
        out = query.new_empty(query.shape[0], shape.query_heads, shape.value_dim)
        sinks = None if sinks is None else sinks.float().contiguous()
        pointers = [None if each is None else each.data_ptr() for each in (query, kv.keys, kv.values, sinks, out)]
        self._native.attend(self._space, self._plan, number, native_shape(shape), pointers, torch.get_num_threads())
        return out


def why_unsuited(native: Kernels, dtype: torch.dtype, shapes: Iterable[AttentionShape]) -> str | None:
    """Return why layers of these shapes cannot attend by these kernels, or None if they can."""
    number = _NUMBER_FORMATS.get(dtype)
    if number is None or not native.has_format(number):
        return f"native kernels for {native.variant.name} don't compute in {dtype}"
    if number is NumberFormat.BFLOAT16 and any(shape.key_dim % 2 for shape in shapes):
        return "native kernels multiply pairs of bfloat16, and there are keys of an odd dimension"
    return None


def number_format(native: Kernels, dtype: torch.dtype) -> NumberFormat:
    """Raises ValueError for a dtype that these kernels don't compute in."""
    reason = why_unsuited(native, dtype, ())
    if reason is not None:
        raise ValueError(reason)
    return _NUMBER_FORMATS[dtype]
