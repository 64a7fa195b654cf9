"""Attention by FlashInfer's kernels, on CUDA devices; its CSR convention is the batch's own, with pages of one slot.

Never run on hardware: checked against a stand-in that has FlashInfer's signatures and computes on the CPU. Those were
read in FlashInfer 0.6.0 and 0.7.4; `CHECKED_VERSIONS` says which others are taken.

One kind of wrapper serves decode, prefill and steps that mix them: the prefill wrapper, which attends on tensor cores,
stacks the query heads that share a KV head, and splits long sequences over the whole device. The kernels are named
("fa2") and not left to FlashInfer's choice, which differs between its versions and devices, and so in what it refuses.

Layers that attend alike share a wrapper, which is planned once a step. What the kernels do not compute (float32, widths
of heads other than `HEAD_DIMS`, values that are not as wide as keys) another backend does, layer by layer.

What sequences share is read for each of them; what a cascade on top would gain is to be measured first.
"""

import importlib
import importlib.metadata
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from worker.attention.backend import AttentionBackend, AttentionPlan, AttentionShape, LayerKV
from worker.attention.cascade_backend import CascadeBackend
from worker.batch import Batch

CHECKED_VERSIONS: Final = ((0, 6), (0, 8))  # from the first on, and before the second
HEAD_DIMS: Final = frozenset({64, 128, 256})
DTYPES: Final = frozenset({torch.float16, torch.bfloat16})
OLDEST_CAPABILITY: Final = (8, 0)  # the first with bfloat16
# Partial results of split sequences, of one layer at a time. FlashInfer recommends 128 MiB, which 8 query heads of 128
# to a KV head exceed on a large device.
WORKSPACE_BYTES: Final = 384 << 20


class Wrapper(Protocol):
    """FlashInfer's BatchPrefillWithPagedKVCacheWrapper, as far as it is used here."""

    def plan(self, **arguments: Any) -> None: ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, return_lse: bool) -> Any: ...


class Library(Protocol):
    """The module `flashinfer`, as far as it is used here."""

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> Callable[..., Wrapper]: ...  # noqa: N802 - its name


@dataclass(frozen=True, slots=True)
class LayerClass:
    """What a wrapper is planned for, beside the batch."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    window: int | None
    softcap: float | None
    dtype: torch.dtype


class FlashInferBackend:
    """Holds a wrapper for each class of layers. Of one thread and one stream, as its wrappers are."""

    def __init__(
        self, device: torch.device, *, library: Library | None = None, fallback: AttentionBackend | None = None
    ) -> None:
        """`library`: the module `flashinfer` unless given. `fallback` computes what FlashInfer does not."""
        self.device = device
        self.fallback: AttentionBackend = fallback or CascadeBackend(device)
        self._library: Library = library or importlib.import_module("flashinfer")
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[LayerClass, _PlannedWrapper] = {}

    def plan(self, batch: Batch) -> "FlashInferPlan":
        return FlashInferPlan(self, batch)

    def wrapper(self, layers: LayerClass) -> "_PlannedWrapper":
        if layers not in self._wrappers:
            wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, kv_layout="NHD", backend="fa2")
            self._wrappers[layers] = _PlannedWrapper(wrapper, layers, self.device)
        return self._wrappers[layers]


class FlashInferPlan:
    def __init__(self, backend: FlashInferBackend, batch: Batch) -> None:
        self._backend = backend
        self._batch = batch

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        if not serves(shape, kv.keys.dtype):
            return self._fallback.run(shape, query, kv, sinks)
        wrapper = self._backend.wrapper(_class_of(shape, kv.keys.dtype)).planned_for(self._paged)
        # A slot is a page of one token.
        pages = (kv.keys.unsqueeze(1), kv.values.unsqueeze(1))
        if sinks is None:
            out: Tensor = wrapper.run(query, pages, return_lse=False)
            return out
        out, lse = wrapper.run(query, pages, return_lse=True)
        return _sink(out, lse, sinks)

    @cached_property
    def _paged(self) -> "_PagedBatch":
        return _PagedBatch.of(self._batch, self._backend.device)

    @cached_property
    def _fallback(self) -> AttentionPlan:
        return self._backend.fallback.plan(self._batch)


@dataclass(frozen=True, slots=True, eq=False)
class _PagedBatch:
    """The batch's metadata where FlashInfer wants it: what it plans with on the host, what kernels read on the device.

    With the former on the device, each plan would wait for it.
    """

    qo_indptr: Tensor  # int32[num_sequences + 1], host
    kv_indptr: Tensor  # int32[num_sequences + 1], host
    kv_indices: Tensor  # int32[kv_indptr[-1]], device
    last_page_len: Tensor  # int32[num_sequences], host; pages of one slot are full

    @staticmethod
    def of(batch: Batch, device: torch.device) -> "_PagedBatch":
        return _PagedBatch(
            torch.from_numpy(np.ascontiguousarray(batch.qo_indptr, np.int32)),
            torch.from_numpy(np.ascontiguousarray(batch.kv_indptr, np.int32)),
            torch.from_numpy(np.ascontiguousarray(batch.kv_indices, np.int32)).to(device),
            torch.ones(batch.num_sequences, dtype=torch.int32),
        )


class _PlannedWrapper:
    """A wrapper, and the batch that it is planned for. Whoever comes with another batch plans it anew."""

    def __init__(self, wrapper: Wrapper, layers: LayerClass, device: torch.device) -> None:
        self._wrapper = wrapper
        self._layers = layers
        self._device = device
        self._planned_for: _PagedBatch | None = None
        self._copied: torch.cuda.Event | None = None

    def planned_for(self, batch: _PagedBatch) -> Wrapper:
        if self._planned_for is not batch:
            self._plan(batch)
            self._planned_for = batch
        return self._wrapper

    def _plan(self, batch: _PagedBatch) -> None:
        # A plan is written to page-locked memory, and copied from there on the stream: the last copy must be over. It
        # is, where the tokens of the step before were waited for.
        if self._copied is not None:
            self._copied.synchronize()
        layers = self._layers
        self._wrapper.plan(
            qo_indptr=batch.qo_indptr,
            paged_kv_indptr=batch.kv_indptr,
            paged_kv_indices=batch.kv_indices,
            paged_kv_last_page_len=batch.last_page_len,
            num_qo_heads=layers.query_heads,
            num_kv_heads=layers.kv_heads,
            head_dim_qk=layers.head_dim,
            page_size=1,
            causal=True,  # the last row of a sequence sees its last key, the row before one less
            sm_scale=layers.scaling,
            # FlashInfer's window counts the keys before the row's own.
            window_left=-1 if layers.window is None else layers.window - 1,
            logits_soft_cap=layers.softcap,
            q_data_type=layers.dtype,
            kv_data_type=layers.dtype,
        )
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(self._device))


def serves(shape: AttentionShape, dtype: torch.dtype) -> bool:
    """Whether the kernels compute such a layer."""
    return dtype in DTYPES and shape.key_dim == shape.value_dim and shape.key_dim in HEAD_DIMS


def why_unavailable(device: torch.device) -> str | None:
    """Say what is missing for FlashInfer's kernels on `device`; None: nothing is."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "FlashInfer's kernels need a CUDA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (OLDEST_CAPABILITY, capability))
        return f"FlashInfer's kernels for bfloat16 need compute capability {needed}, the device has {found}"
    return why_unusable_library()


def why_unusable_library() -> str | None:
    """Say why the package can't be used, whatever the device; None: it can."""
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return "the package flashinfer-python is not installed: pip install 'radixgate[cuda]'"
    first, end = CHECKED_VERSIONS
    if not first <= _parse(version) < end:
        wanted = " and below ".join(".".join(map(str, bound)) for bound in CHECKED_VERSIONS)
        return f"flashinfer-python {version} is not a version that this backend knows: {wanted}"
    try:
        importlib.import_module("flashinfer")
    except (ImportError, OSError, RuntimeError) as error:
        return f"flashinfer-python {version} cannot be imported: {error}"
    return None


def _parse(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _class_of(shape: AttentionShape, dtype: torch.dtype) -> LayerClass:
    return LayerClass(
        shape.query_heads, shape.kv_heads, shape.key_dim, shape.scaling, shape.window, shape.softcap, dtype
    )


def _sink(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Give each head's sink its share of the weight: out * e^lse / (e^lse + e^sink).

    `lse` is float32[rows, query_heads], to base 2. FlashInfer's own argument `sinks` serves only some of its kernels.
    """
    share = torch.sigmoid(lse * math.log(2) - sinks.float())
    return (out.float() * share[..., None]).to(out.dtype)
