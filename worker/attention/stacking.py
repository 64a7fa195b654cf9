"""How rows are laid out for products: the query heads that share a KV head stand below each other.

A layout of the torch backends alone. Knows shapes, no sequences and no slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.attention.partial import Partial


@dataclass(frozen=True, slots=True)
class Found:
    """What rows found in some of their keys."""

    out: Tensor  # float32[kv_heads, rows, group, value_dim]
    lse: Tensor  # float32[kv_heads, rows, group]


def stack(query: Tensor, kv_heads: int) -> Tensor:
    """dtype[rows, query_heads, dim] → float32[kv_heads, rows, group, dim]."""
    rows, query_heads, dim = query.shape
    return query.view(rows, kv_heads, query_heads // kv_heads, dim).permute(1, 0, 2, 3).float().contiguous()


def as_one_batch(stacked: Tensor) -> Tensor:
    """[kv_heads, rows, group, dim] → [1, kv_heads, rows * group, dim], a view: how parts are asked for."""
    return stacked.flatten(1, 2)[None]


def from_one_batch(part: Partial, group: int) -> Found:
    """Turn the answer to `as_one_batch` back, as views."""
    _, kv_heads, rows, dim = part.out.shape
    return Found(part.out.view(kv_heads, rows // group, group, dim), part.lse.view(kv_heads, rows // group, group))


def unstack(out: Tensor) -> Tensor:
    """[kv_heads, rows, group, dim] → [rows, query_heads, dim]."""
    return out.transpose(0, 1).flatten(1, 2)


def add_sinks(found: Found, sinks: Tensor) -> Tensor:
    """Give each head's sink, float[query_heads], its share of the weight: out * e^lse / (e^lse + e^sink)."""
    kv_heads, _, group = found.lse.shape
    share = torch.sigmoid(found.lse - sinks.float().view(kv_heads, 1, group))
    return found.out * share[..., None]
