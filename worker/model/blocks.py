"""Searches in long rows of numbers, a block at a time: what a whole vocabulary costs, paid for its blocks only.

Each gives what the plain torch function gives. On the CPU `amax` and `sum` are vectorised, and `argmax`, `topk` and
`cumsum` are not: they are the slower by a factor of ten (SmolLM2's 49,152 tokens, torch 2.13).
"""

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 256
_SMALL_BLOCK = 32  # for the k largest: as many blocks are looked into


def argmax(values: Tensor) -> Tensor:
    """Return int64[rows]: the place of the largest of each row of `values`, float[rows, n], the first of equals."""
    blocks = _in_blocks(values, float("-inf"))
    block = blocks.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return (block * _BLOCK + _of_each(blocks, block).argmax(dim=-1, keepdim=True))[:, 0]


def topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` largest of each row of `values`, float[rows, n], and their places, int64[rows, k], in any order.

    Which of those that equal the smallest of them are among them, is open.
    """
    num_blocks, rest = divmod(values.shape[-1], _SMALL_BLOCK)
    if rest or k >= num_blocks:
        found = values.topk(k)
        return found.values, found.indices
    # The k largest lie in the k blocks whose largest is largest.
    blocks = values.view(len(values), num_blocks, _SMALL_BLOCK)
    chosen = blocks.amax(dim=-1).topk(k, sorted=False).indices
    inside = blocks.gather(1, chosen[:, :, None].expand(-1, -1, _SMALL_BLOCK)).flatten(1)
    largest = inside.topk(k)
    places = chosen.gather(1, largest.indices // _SMALL_BLOCK) * _SMALL_BLOCK + largest.indices % _SMALL_BLOCK
    return largest.values, places


def inverse_cdf(weights: Tensor, drawn: Tensor) -> Tensor:
    """Return int64[rows]: where `drawn` times the sum of all falls in the cumulated `weights`, float[rows, n].

    `drawn`, float64[rows, 1], lies in [0, 1). An entry without weight is never the place, unless none has any.
    """
    blocks = _in_blocks(weights, 0.0)
    reached = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)  # float64[rows, blocks]
    target = drawn * reached[:, -1:]
    block = place(reached, target)
    before = torch.where(block > 0, reached.gather(1, (block - 1).clamp(min=0)), 0.0)
    within = _of_each(blocks, block).double().cumsum(dim=-1)
    return (block * _BLOCK + place(within, target - before)).clamp_(max=weights.shape[-1] - 1)[:, 0]


def place(cdf: Tensor, target: Tensor) -> Tensor:
    """Return int64[rows, 1]: the entry of `cdf`, float64[rows, n], in which `target`, float64[rows, 1], falls."""
    index = torch.searchsorted(cdf, target, right=True)
    # Rounding can lift the target to the total; the last entry with any weight is where that belongs. There is none
    # if the model's own logits were no numbers: any token will do then, but it must be one.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous(), right=False).clamp_(max=cdf.shape[-1] - 1)
    return torch.minimum(index, last)


def _in_blocks(values: Tensor, filler: float) -> Tensor:
    """[rows, n] → [rows, blocks, _BLOCK], the last block filled up."""
    missing = -values.shape[-1] % _BLOCK
    if missing:
        values = functional.pad(values, (0, missing), value=filler)
    return values.reshape(len(values), -1, _BLOCK)


def _of_each(blocks: Tensor, block: Tensor) -> Tensor:
    """The block of each row that `block`, int64[rows, 1], says: [rows, _BLOCK]."""
    return blocks.gather(1, block[:, :, None].expand(-1, -1, blocks.shape[-1]))[:, 0]
