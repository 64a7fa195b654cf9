"""Loads the native kernels that fit this processor, and calls them. Knows pointers and sizes, no torch.

What is made in native code is held by a Python object and freed with it. Native calls let other threads run.
"""

import ctypes
import platform
import re
import struct
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_int, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker.batch import Batch, Int32Array
from worker.native import structures
from worker.native.build import Variant, library_path, variants

ABI_VERSION = 2
BLOCK_TOKENS = 128
"""Shared ranges of a plan end at multiples of this: kBlock in `src/plan.h`."""

Pointers = NDArray[np.uint64]

_ELF_HEADER = struct.Struct("<40xQ10xHH2x")
"""Where the table of sections is, the size of an entry, and how many it has."""


class NumberFormat(IntEnum):
    FLOAT32 = 0
    BFLOAT16 = 1


class AdapterSite(IntEnum):
    """The products of a layer that adapters change, each with all of its modules."""

    QKV = 0
    OUT = 1
    GATE_UP = 2
    DOWN = 3


class NativeError(Exception):
    """Native code says that it could not do something: as a rule that there is no memory."""


class Handle:
    """Something made in native code."""

    def __init__(self, address: int | None, free: Callable[[int], None], what: str) -> None:
        if not address:
            raise NativeError(f"no memory for {what}")
        self.address = address
        # At the end of the process nothing is freed: a thread that is left behind may be computing with it.
        weakref.finalize(self, free, address).atexit = False


class Weights(Handle):
    """A packed matrix [outputs, inputs]."""


class Plan(Handle):
    """What a step attends to. Borrows the arrays of its batch, which must not change while it lives."""

    def __init__(self, address: int | None, free: Callable[[int], None], borrowed: object) -> None:
        super().__init__(address, free, "the plan of a step")
        self._borrowed = borrowed


class Kernels:
    """The functions of one library. Calls of one AttentionSpace or decoder must not overlap; otherwise thread-safe."""

    def __init__(self, path: Path, variant: Variant) -> None:
        """Raises OSError for what is no library, NativeError for one that speaks another language or lacks its end."""
        self.variant = variant
        if path.stat().st_size < _whole_size(path):
            raise NativeError(f"{path.name} is cut short")
        self._library = library = ctypes.CDLL(str(path))
        try:
            same = library.rg_abi_version() == ABI_VERSION
            for name, result, arguments in _SIGNATURES:
                function = getattr(library, name)
                function.restype = result
                function.argtypes = arguments
        except AttributeError:  # a function that isn't there
            same = False
        if not same:
            raise NativeError(f"{path.name} has another interface than this package")
        self.panel: int = library.rg_panel()

    def has_format(self, number: NumberFormat) -> bool:
        return bool(self._library.rg_has_format(number))

    def pack(self, number: NumberFormat, rows: Pointers, inputs: int, threads: int) -> Weights:
        """Pack the matrix whose rows `rows` points to, `inputs` numbers each; 0 stands for a row of zeros."""
        address = self._library.rg_weights_pack(number, rows.ctypes.data, len(rows), inputs, threads)
        return Weights(address, self._library.rg_weights_free, f"weights [{len(rows)}, {inputs}]")

    def plan(self, batch: Batch, ranges: "Ranges") -> Plan:
        """Plan the attention of `batch`, whose sequences share `ranges`."""
        arrays = [int32(each) for each in (batch.positions, batch.qo_indptr, batch.kv_indptr, batch.kv_indices)]
        shared = (ranges.indptr, ranges.sequences, ranges.firsts, ranges.ends)
        step = structures.Step(
            batch.num_sequences,
            *(each.ctypes.data for each in arrays),
            len(ranges.ends),
            *(each.ctypes.data for each in shared),
        )
        return Plan(self._library.rg_plan_create(byref(step)), self._library.rg_plan_free, (arrays, ranges))

    def attention_space(self) -> Handle:
        """Return the memory that `attend` works in, which grows with its use."""
        return Handle(self._library.rg_attention_create(), self._library.rg_attention_free, "attention")

    def attend(
        self,
        space: Handle,
        plan: Plan,
        number: NumberFormat,
        shape: structures.AttentionShape,
        pointers: Sequence[int | None],
        threads: int,
    ) -> None:
        """Attend with every row of the plan. `pointers`: query, keys, values, sinks or None, out; all contiguous."""
        status = self._library.rg_attention_run(space.address, plan.address, number, byref(shape), *pointers, threads)
        if status:
            raise NativeError("no memory for attention")

    def decoder(
        self,
        number: NumberFormat,
        shape: structures.DecoderShape,
        layers: Sequence[structures.LayerParts],
        *,
        embedding: int,
        last_norm: int,
        head: Weights,
    ) -> Handle:
        """Return a decoder. What its parts point to is the caller's, and must live as long."""
        parts = (structures.LayerParts * len(layers))(*layers)
        address = self._library.rg_decoder_create(
            number, byref(shape), parts, len(layers), embedding, last_norm, head.address
        )
        return Handle(address, self._library.rg_decoder_free, "the decoder")

    def adapter(self, num_layers: int) -> Handle:
        """Return a LoRA adapter that changes nothing yet."""
        return Handle(self._library.rg_adapter_create(num_layers), self._library.rg_adapter_free, "an adapter")

    def set_adapter(
        self,
        adapter: Handle,
        number: NumberFormat,
        layer: int,
        site: "AdapterSite",
        down: Pointers,
        inputs: int,
        up: Pointers,
    ) -> None:
        """Pack what an adapter adds to one product; once for each. `down` points to rank rows of `inputs` numbers.

        `up` points to a row of rank numbers for each of the product's outputs, 0 for a row of zeros; the rank is even.
        """
        status = self._library.rg_adapter_set(
            adapter.address, number, layer, site, down.ctypes.data, len(down), inputs, up.ctypes.data, len(up)
        )
        if status:
            raise NativeError("no memory for an adapter")

    def run_decoder(self, decoder: Handle, plan: Plan, step: structures.DecoderStep, threads: int) -> None:
        """Compute a step; see `structures.DecoderStep`."""
        if self._library.rg_decoder_run(decoder.address, plan.address, byref(step), threads):
            raise NativeError("no memory for a step")


class Ranges:
    """Ranges of positions that sequences share, as arrays of int32: CSR of their sequences, firsts and ends."""

    def __init__(self, sequences: Sequence[Int32Array], firsts: Sequence[int], ends: Sequence[int]) -> None:
        self.indptr = np.cumsum([0, *(len(each) for each in sequences)], dtype=np.int32)
        self.sequences = np.concatenate([*sequences, np.zeros(0, np.int32)], dtype=np.int32)
        self.firsts = np.array(firsts, dtype=np.int32)
        self.ends = np.array(ends, dtype=np.int32)


def int32(array: Int32Array) -> Int32Array:
    """Return the array as native code reads it: itself, as a rule."""
    return np.ascontiguousarray(array, dtype=np.int32)


@cache
def kernels() -> Kernels | None:
    """Return the best kernels that this processor can run, or None where none were compiled for it."""
    return next((found for variant in runnable_variants() if (found := load(variant)) is not None), None)


def runnable_variants() -> tuple[Variant, ...]:
    """Return the kinds of processor that this one is, compiled for or not, the best first."""
    features = _processor_features()
    return tuple(variant for variant in variants() if variant.needs <= features)


def load(variant: Variant) -> Kernels | None:
    """Return the kernels for `variant`, or None if they were not compiled or cannot be loaded."""
    path = library_path(variant)
    try:
        return Kernels(path, variant) if path.exists() else None
    except (OSError, NativeError):
        return None


def why_no_kernels() -> str | None:
    """Return why `kernels()` is None, or None if it is not."""
    if kernels() is not None:
        return None
    if not variants():
        return f"there are none for {platform.machine()}"
    if not any(library_path(variant).exists() for variant in variants()):
        return "not compiled from these sources: with a C++ compiler, python -m worker.native.build does"
    failures = [reason for variant in runnable_variants() if (reason := _why_not_loaded(variant)) is not None]
    if failures:
        return f"they cannot be loaded: {'; '.join(failures)}"
    return "none of those compiled runs on this processor"


def _why_not_loaded(variant: Variant) -> str | None:
    path = library_path(variant)
    try:
        if path.exists():
            Kernels(path, variant)
    except (OSError, NativeError) as error:
        return str(error)
    return None


def _whole_size(path: Path) -> int:
    """Return how many bytes a library of 64 bits has at least: its table of sections lies at its end.

    The system maps what is missing, too, and ends a process that reads it. See elf(5).
    """
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER.size)
    if len(header) < _ELF_HEADER.size or not header.startswith(b"\x7fELF"):
        return 0  # whoever loads it will say what is wrong
    table, entry_size, entries = _ELF_HEADER.unpack(header)
    return int(table + entry_size * entries)


def _processor_features() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


_SIGNATURES: tuple[tuple[str, object, list[object]], ...] = (
    ("rg_has_format", c_int, [c_int]),
    ("rg_panel", c_int, []),
    ("rg_weights_pack", c_void_p, [c_int, c_void_p, c_int, c_int, c_int]),
    ("rg_weights_free", None, [c_void_p]),
    ("rg_plan_create", c_void_p, [POINTER(structures.Step)]),
    ("rg_plan_free", None, [c_void_p]),
    ("rg_attention_create", c_void_p, []),
    ("rg_attention_free", None, [c_void_p]),
    (
        "rg_attention_run",
        c_int,
        [c_void_p, c_void_p, c_int, POINTER(structures.AttentionShape), *([c_void_p] * 5), c_int],
    ),
    (
        "rg_decoder_create",
        c_void_p,
        [c_int, POINTER(structures.DecoderShape), c_void_p, c_int, c_void_p, c_void_p, c_void_p],
    ),
    ("rg_decoder_free", None, [c_void_p]),
    ("rg_adapter_create", c_void_p, [c_int]),
    ("rg_adapter_free", None, [c_void_p]),
    ("rg_adapter_set", c_int, [c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_int, c_void_p, c_int]),
    ("rg_decoder_run", c_int, [c_void_p, c_void_p, POINTER(structures.DecoderStep), c_int]),
)
