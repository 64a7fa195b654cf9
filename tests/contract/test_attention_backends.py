"""Every attention backend against the oracle, on random batches, head layouts, windows, softcaps, sinks and slots."""

from dataclasses import dataclass
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.attention_oracle import CPU, check_backend
from worker.attention.backend import AttentionShape
from worker.attention.registry import AUTO, available_backends, backend_by_name, backend_names
from worker.batch import Batch
from worker.config import ModelConfig

torch.set_num_threads(1)
BACKENDS = available_backends(CPU)


@dataclass(frozen=True)
class Case:
    chunks: tuple[tuple[int, int], ...]  # (tokens cached, tokens computed now) of each sequence
    shape: AttentionShape
    seed: int
    page_size: int
    dtype: torch.dtype = torch.float32


def batch_of(chunks: tuple[tuple[int, int], ...], page_size: int, rng: np.random.Generator) -> tuple[Batch, int]:
    """Return a batch whose sequences lie in pages dealt out at random, and how many slots the pool has."""
    pages = [-(-(cached + new) // page_size) for cached, new in chunks]
    deck = rng.permutation(sum(pages) + 3)
    kv_indices, out_slots, positions = [], [], []
    dealt = 0
    for (cached, new), num_pages in zip(chunks, pages, strict=True):
        mine = deck[dealt : dealt + num_pages]
        dealt += num_pages
        slots = (mine[:, None] * page_size + np.arange(page_size)).reshape(-1)[: cached + new]
        kv_indices.append(slots)
        out_slots.append(slots[cached:])
        positions.append(np.arange(cached, cached + new))
    batch = Batch(
        token_ids=np.zeros(sum(new for _, new in chunks), np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        out_slots=np.concatenate(out_slots).astype(np.int32),
        qo_indptr=np.cumsum([0, *(new for _, new in chunks)]).astype(np.int32),
        kv_indptr=np.cumsum([0, *(cached + new for cached, new in chunks)]).astype(np.int32),
        kv_indices=np.concatenate(kv_indices).astype(np.int32),
        samples=(),
    )
    return batch, len(deck) * page_size


def check(backend: str, case: Case) -> None:
    batch, num_slots = batch_of(case.chunks, case.page_size, np.random.default_rng(case.seed))
    check_backend(backend_by_name(backend, CPU), batch, num_slots, case.shape, case.dtype, case.seed)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.integers(1, 3))
    key_dim = draw(st.sampled_from([4, 8, 16]))
    shape = AttentionShape(
        query_heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from([key_dim, 4, 12])),
        scaling=draw(st.sampled_from([0.2, key_dim**-0.5, 1.0])),
        window=draw(st.none() | st.integers(1, 40)),
        softcap=draw(st.none() | st.sampled_from([1.0, 5.0])),
        has_sinks=draw(st.booleans()),
    )
    chunk = st.tuples(st.integers(0, 30), st.integers(1, 1) | st.integers(1, 24))
    return Case(
        chunks=tuple(draw(st.lists(chunk, min_size=1, max_size=4))),
        shape=shape,
        seed=draw(st.integers(0, 2**32 - 1)),
        page_size=draw(st.sampled_from([1, 4, 64])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=120)
@given(case=cases())
def test_a_backend_computes_what_the_oracle_says(backend: str, case: Case) -> None:
    check(backend, case)


GQA = AttentionShape(query_heads=6, kv_heads=2, key_dim=8, value_dim=8, scaling=0.35)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prefix_longer_than_a_tile_is_attended_whole(backend: str) -> None:
    softcapped = AttentionShape(query_heads=2, kv_heads=1, key_dim=4, value_dim=4, scaling=0.5, softcap=3.0)
    check(backend, Case(((2500, 3), (1030, 1)), softcapped, seed=1, page_size=1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 5, 6, 7, 11, 12, 13, 200])
def test_a_window_around_the_edges_of_the_chunk_is_exact(backend: str, window: int) -> None:
    shape = AttentionShape(query_heads=2, kv_heads=1, key_dim=4, value_dim=4, scaling=0.5, window=window)
    check(backend, Case(((6, 6), (0, 12), (11, 1)), shape, seed=2, page_size=1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_contiguous_and_a_scattered_sequence_agree(backend: str) -> None:
    check(backend, Case(((20, 9), (3, 1)), GQA, seed=3, page_size=64))
    check(backend, Case(((20, 9), (3, 1)), GQA, seed=3, page_size=1))


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown attention backend 'abacus'; known: auto, .*cascade, torch"):
        backend_by_name("abacus", CPU)


def test_a_backend_that_cannot_be_had_is_refused_with_the_reason_and_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'flashinfer' is not available: .*CUDA device; there is: .*cascade, torch"):
        backend_by_name("flashinfer", CPU)


def test_auto_takes_the_best_that_there_is() -> None:
    assert type(backend_by_name(AUTO, CPU)) is type(backend_by_name(BACKENDS[0], CPU))
    assert BACKENDS[-2:] == ("cascade", "torch"), "the reference is the last resort"


def test_the_configuration_offers_exactly_the_backends_there_are() -> None:
    assert set(get_args(get_type_hints(ModelConfig)["attention"])) == {AUTO, *backend_names()}
