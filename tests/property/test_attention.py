"""Attention over slots is what the oracle says, with every backend, for any tree that the sequences of a step form."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from tests.contract.attention_oracle import CPU, check_backend
from tests.property.attention_trees import TreeBatch, batch_on_a_tree
from worker.attention.backend import AttentionShape
from worker.attention.registry import available_backends, backend_by_name
from worker.attention.sharing import shared_ranges

torch.set_num_threads(1)


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    kv_heads = draw(st.integers(1, 4))
    key_dim = draw(st.sampled_from([16, 32, 64, 80, 128]))
    return AttentionShape(
        query_heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from([key_dim, key_dim, 16, 48])),
        scaling=key_dim**-0.5 * draw(st.sampled_from([1.0, 0.5, 3.0])),
        window=draw(st.none() | st.integers(1, 600) | st.sampled_from([1, 2, 127, 128, 129, 256])),
        softcap=draw(st.none() | st.none() | st.sampled_from([1.0, 20.0])),
        has_sinks=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Case:
    seed: int
    num_sequences: int
    max_tokens: int
    page_size: int
    scattered: bool
    max_rows: int
    shape: AttentionShape
    dtype: torch.dtype

    def tree(self) -> TreeBatch:
        return batch_on_a_tree(
            np.random.default_rng(self.seed),
            num_sequences=self.num_sequences,
            max_tokens=self.max_tokens,
            page_size=self.page_size,
            scattered=self.scattered,
            max_rows=self.max_rows,
        )


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    num_sequences=st.sampled_from([6, 12, 3, 2, 1, 16]),
    max_tokens=st.sampled_from([300, 600, 40, 900]),
    page_size=st.sampled_from([1, 1, 16]),
    scattered=st.booleans(),
    max_rows=st.sampled_from([1, 5, 80]),
    shape=shapes(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)


@pytest.mark.parametrize("backend", available_backends(CPU))
@given(case=CASES)
def test_a_backend_computes_what_the_oracle_says_on_any_tree(backend: str, case: Case) -> None:
    tree = case.tree()
    event(f"shared ranges of 64 tokens: {min(len(shared_ranges(tree.batch, min_tokens=64, min_rows=2)), 5)}")
    check_backend(backend_by_name(backend, CPU), tree.batch, tree.num_slots, case.shape, case.dtype, case.seed)
