"""Attention over a part of the keys: results that can be merged by their log-sum-exp.

A row's attention over disjoint sets of keys is the average of the parts, weighted by the exponential of each part's
log-sum-exp of logits. So a long prefix needs no mask: it is one part, the causal chunk behind it another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker.attention.backend import AttentionShape

# Keys per tile where the logits are materialised: bounds the memory of a long prefix.
TILE_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Partial:
    """What rows found in one part of their keys."""

    out: Tensor  # float32[batch, heads, rows, value_dim]; 0 for a row that sees no key of this part
    lse: Tensor  # float32[batch, heads, rows]; -inf for such a row


class PartialAttention(Protocol):
    """Computes one part, in float32. Heads are KV heads: the rows of query heads that share one are stacked.

    `query` [batch, kv_heads, rows, key_dim], `keys` [batch, kv_heads, num_keys, key_dim], `values` [batch, kv_heads,
    num_keys, value_dim]; `bias`, if given, [batch, 1, rows, num_keys] with 0 where a row sees a key and -inf where
    not. All float32.
    """

    def __call__(
        self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
    ) -> Partial: ...


def partial_attention(device: torch.device) -> Callable[[AttentionShape], PartialAttention]:
    """Return what tells the best way on `device` to compute parts of a layer."""
    return _fused_where_possible if device.type == "cpu" and works_flash_cpu() else _always_tiled


def tiled(shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Partial:
    """Any device, any shape, softcap included."""
    parts = [
        _tile(
            shape,
            query,
            keys[:, :, start : start + TILE_KEYS],
            values[:, :, start : start + TILE_KEYS],
            None if bias is None else bias[..., start : start + TILE_KEYS],
        )
        for start in range(0, keys.shape[2], TILE_KEYS)
    ]
    return parts[0] if len(parts) == 1 else merge(parts)


def flash_cpu(shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Partial:
    """The fused CPU kernel. Only for layers without softcap and with values as wide as keys.

    The kernel reports 0 as the log-sum-exp of a row that sees no key: the caller knows such rows, see `hide`.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=bias, scale=shape.scaling
    )
    return Partial(out, lse)


def merge(parts: list[Partial]) -> Partial:
    """Combine parts over disjoint keys. Each row must see a key in at least one of them."""
    lses = torch.stack([part.lse for part in parts])  # float32[parts, batch, heads, rows]
    total = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - total)[..., None]
    out = weights[0] * parts[0].out
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        out += weight * part.out
    return Partial(out, total)


def hide(part: Partial, blind: Tensor) -> Partial:
    """State that the rows marked in `blind`, bool[rows], see no key of this part."""
    return Partial(part.out, part.lse.masked_fill(blind, float("-inf")))


def works_flash_cpu() -> bool:
    """Whether this build of torch has the fused kernel, with the results and the log-sum-exp expected of it."""
    generator = torch.Generator().manual_seed(0)
    shape = AttentionShape(query_heads=4, kv_heads=2, key_dim=16, value_dim=16, scaling=0.3)
    query, keys, values = (torch.randn(3, rows, 2, 16, generator=generator).transpose(1, 2) for rows in (6, 33, 33))
    bias = torch.zeros(3, 1, 6, 33)
    bias[1:, 0, 2, 5:] = float("-inf")
    try:
        got = flash_cpu(shape, query, keys, values, bias)
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False
    expected = tiled(shape, query, keys, values, bias)
    return bool(torch.allclose(got.out, expected.out, atol=1e-5) and torch.allclose(got.lse, expected.lse, atol=1e-5))


def _fused_where_possible(shape: AttentionShape) -> PartialAttention:
    return flash_cpu if shape.softcap is None and shape.key_dim == shape.value_dim else tiled


def _always_tiled(shape: AttentionShape) -> PartialAttention:
    return tiled


def _tile(shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Partial:
    # In place: fresh memory for each of these would cost more than what is computed.
    logits = torch.matmul(query, keys.transpose(2, 3)).mul_(shape.scaling)
    if shape.softcap is not None:
        logits.div_(shape.softcap).tanh_().mul_(shape.softcap)
    if bias is not None:
        logits += bias
    # A row that sees nothing has lse -inf: its weights must be 0, not nan.
    top = logits.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.matmul(weights, values).div_(total.clamp(min=torch.finfo(torch.float32).tiny))
    return Partial(out, total.log_().add_(top)[..., 0])
