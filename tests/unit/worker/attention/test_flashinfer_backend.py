"""The FlashInfer backend over a stand-in: what it asks of the library, and what comes of it against the oracle."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.attention_oracle import attend
from tests.fakes.flashinfer import FakeFlashInfer
from worker.attention import flashinfer_backend
from worker.attention.backend import AttentionPlan, AttentionShape, LayerKV
from worker.attention.flashinfer_backend import FlashInferBackend, serves, why_unavailable
from worker.attention.torch_backend import TorchBackend
from worker.batch import Batch

torch.set_num_threads(1)
CPU = torch.device("cpu")
SIGNATURES = json.loads((Path(__file__).parents[3] / "data" / "flashinfer_signatures.json").read_text())
PLAIN = AttentionShape(query_heads=2, kv_heads=1, key_dim=64, value_dim=64, scaling=0.125)
MIXED = ((5, 3), (0, 6), (9, 1), (0, 1))


class CountingFallback:
    """The torch backend, and how often it was asked to plan."""

    def __init__(self) -> None:
        self.plans = 0
        self._torch = TorchBackend(CPU)

    def plan(self, batch: Batch) -> AttentionPlan:
        self.plans += 1
        return self._torch.plan(batch)


class Rig:
    """A backend over the stand-in, a batch, and a pool of random numbers in which foreign slots are nan."""

    def __init__(self, chunks: tuple[tuple[int, int], ...], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
        self.library = FakeFlashInfer()
        self.fallback = CountingFallback()
        self.backend = FlashInferBackend(CPU, library=self.library, fallback=self.fallback)
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.batch = self.make_batch(chunks)

    def make_batch(self, chunks: tuple[tuple[int, int], ...]) -> Batch:
        slots = self.rng.permutation(sum(cached + new for cached, new in chunks) + 3).astype(np.int32)
        kv_indptr = np.cumsum([0, *(cached + new for cached, new in chunks)]).astype(np.int32)
        mine = [slots[kv_indptr[i] : kv_indptr[i + 1]] for i in range(len(chunks))]
        return Batch(
            token_ids=np.zeros(sum(new for _, new in chunks), np.int32),
            positions=np.concatenate([np.arange(c, c + n, dtype=np.int32) for c, n in chunks]),
            out_slots=np.concatenate([own[c:] for own, (c, _) in zip(mine, chunks, strict=True)]),
            qo_indptr=np.cumsum([0, *(new for _, new in chunks)]).astype(np.int32),
            kv_indptr=kv_indptr,
            kv_indices=np.concatenate(mine),
            samples=(),
        )

    def draw(self, *size: int) -> Tensor:
        return torch.from_numpy(self.rng.normal(size=size)).to(self.dtype)

    def inputs(self, shape: AttentionShape) -> tuple[Tensor, LayerKV, Tensor | None]:
        num_slots = int(self.batch.kv_indices.max()) + 1
        keys = self.draw(num_slots, shape.kv_heads, shape.key_dim)
        values = self.draw(num_slots, shape.kv_heads, shape.value_dim)
        foreign = np.setdiff1d(np.arange(num_slots), self.batch.kv_indices)
        keys[foreign], values[foreign] = float("nan"), float("nan")
        query = self.draw(self.batch.num_tokens, shape.query_heads, shape.key_dim)
        return query, LayerKV(keys, values), self.draw(shape.query_heads) if shape.has_sinks else None

    def check(self, shape: AttentionShape, plan: AttentionPlan) -> None:
        query, kv, sinks = self.inputs(shape)
        got = plan.run(shape, query, kv, sinks)
        expected = attend(
            self.batch,
            shape,
            query.double().numpy(),
            kv.keys.double().numpy(),
            kv.values.double().numpy(),
            None if sinks is None else sinks.double().numpy(),
        )
        assert got.dtype == self.dtype
        tolerance = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[self.dtype]
        np.testing.assert_allclose(got.double().numpy(), expected, atol=tolerance, rtol=0)


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    kv_heads = draw(st.integers(1, 2))
    return AttentionShape(
        query_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        key_dim=64,
        value_dim=draw(st.sampled_from([64, 64, 32])),
        scaling=draw(st.sampled_from([0.125, 0.3])),
        window=draw(st.none() | st.integers(1, 12)),
        softcap=draw(st.none() | st.just(3.0)),
        has_sinks=draw(st.booleans()),
    )


@settings(max_examples=60)
@given(
    layers=st.lists(shapes(), min_size=1, max_size=3),
    chunks=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 1) | st.integers(1, 9)), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_layers_of_a_step_get_what_the_oracle_says(
    layers: list[AttentionShape], chunks: list[tuple[int, int]], dtype: torch.dtype, seed: int
) -> None:
    rig = Rig(tuple(chunks), dtype, seed)
    plan = rig.backend.plan(rig.batch)
    for shape in layers:
        rig.check(shape, plan)


def test_layers_that_attend_alike_are_planned_once_a_step() -> None:
    rig = Rig(MIXED)
    windowed = AttentionShape(query_heads=2, kv_heads=1, key_dim=64, value_dim=64, scaling=0.125, window=4)
    for _ in range(2):
        plan = rig.backend.plan(rig.batch)
        for shape in (PLAIN, windowed, PLAIN, windowed):
            rig.check(shape, plan)
    assert len(rig.library.made("__init__")) == 2
    assert len(rig.library.made("plan")) == 4
    assert len(rig.library.made("run")) == 8


def test_sinks_share_a_wrapper_with_layers_that_have_none() -> None:
    rig = Rig(MIXED)
    plan = rig.backend.plan(rig.batch)
    rig.check(PLAIN, plan)
    rig.check(AttentionShape(2, 1, 64, 64, scaling=0.125, has_sinks=True), plan)
    assert len(rig.library.made("plan")) == 1


def test_two_plans_that_take_turns_do_not_mix() -> None:
    rig = Rig(MIXED)
    first_batch, first = rig.batch, rig.backend.plan(rig.batch)
    rig.check(PLAIN, first)
    rig.batch = rig.make_batch(((2, 2), (7, 1)))
    second = rig.backend.plan(rig.batch)
    rig.check(PLAIN, second)
    rig.batch = first_batch
    rig.check(PLAIN, first)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (PLAIN, torch.float32),
        (AttentionShape(2, 1, 80, 80, scaling=0.1), torch.bfloat16),
        (AttentionShape(2, 1, 128, 64, scaling=0.1), torch.bfloat16),
    ],
)
def test_what_the_kernels_do_not_compute_the_fallback_does(shape: AttentionShape, dtype: torch.dtype) -> None:
    rig = Rig(MIXED, dtype)
    assert not serves(shape, dtype)
    plan = rig.backend.plan(rig.batch)
    rig.check(shape, plan)
    rig.check(shape, plan)
    assert rig.fallback.plans == 1
    assert rig.library.calls == []


def test_the_fallback_does_not_plan_where_it_is_not_needed() -> None:
    rig = Rig(MIXED)
    rig.check(PLAIN, rig.backend.plan(rig.batch))
    assert rig.fallback.plans == 0


@pytest.mark.parametrize("version", SIGNATURES)
def test_every_call_fits_the_signatures_that_were_read(version: str) -> None:
    rig = Rig(MIXED)
    plan = rig.backend.plan(rig.batch)
    rig.check(AttentionShape(2, 1, 64, 64, scaling=0.125, window=4, softcap=2.0, has_sinks=True), plan)
    assert {call.method for call in rig.library.calls} == {"__init__", "plan", "run"}
    for call in rig.library.calls:
        recorded: list[tuple[str, str, str | None]] = SIGNATURES[version][call.method]
        positional = [name for name, kind, _ in recorded if kind == "positional"]
        assert set(call.named) <= {name for name, kind, _ in recorded if kind != "varargs"}
        given_names = {*positional[: len(call.positional)], *call.named}
        needed = {name for name, kind, default in recorded if kind != "varargs" and default is None}
        assert needed <= given_names, f"{call.method} of {version} needs {needed - given_names}"


def test_what_plans_read_on_the_host_stays_there() -> None:
    rig = Rig(MIXED)
    rig.check(PLAIN, rig.backend.plan(rig.batch))
    (call,) = rig.library.made("plan")
    for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len"):
        assert call.named[name].device == CPU
    assert call.named["paged_kv_indices"].tolist() == rig.batch.kv_indices.tolist()


def test_without_a_cuda_device_it_says_so() -> None:
    assert why_unavailable(CPU) == "FlashInfer's kernels need a CUDA device"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.3", "flashinfer-python 0.5.3 is not a version that this backend knows: 0.6 and below 0.8"),
        ("0.8.0", "flashinfer-python 0.8.0 is not a version that this backend knows: 0.6 and below 0.8"),
        ("0.7.2.post1", "flashinfer-python 0.7.2.post1 cannot be imported: no kernels here"),
    ],
)
def test_a_library_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, version: str, expected: str) -> None:
    def missing(_name: str) -> Any:
        raise ImportError("no kernels here")

    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    monkeypatch.setattr("importlib.import_module", missing)
    assert flashinfer_backend.why_unusable_library() == expected


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert "pip install 'radixgate[cuda]'" in (flashinfer_backend.why_unusable_library() or "")
