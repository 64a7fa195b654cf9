"""What the engine asks of whoever knows which tokens may follow under a constraint. Knows no grammars.

Bits are packed: bit i of word w stands for token 32 w + i.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from worker.batch import Uint32Array


class ConstraintFailed(Exception):
    """A completion can't be held to its constraint any further. No other one is concerned."""


class ConstraintState(Protocol):
    """How far one completion has come. Of no use any more once it failed, or nothing may follow."""

    @property
    def allowed(self) -> Uint32Array:
        """What may be the next token, uint32[ceil(vocab_size / 32)]; end tokens only where the text fulfils it."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take the next token, which is no end token; return whether more may follow. Raises ConstraintFailed."""
        ...


class Constraint(Protocol):
    """What completions must read like, ready to be held to. Called from the engine's thread only."""

    def begin(self, token_ids: Sequence[int] = ()) -> ConstraintState:
        """Return the state behind `token_ids`, the completion so far.

        Raises ConstraintFailed if they don't fit, or if nothing may follow them.
        """
        ...


def allows(allowed: Uint32Array | None, token_id: int) -> bool:
    """Whether a token is among those allowed; None allows all."""
    return allowed is None or bool(allowed[token_id >> 5] >> np.uint32(token_id & 31) & np.uint32(1))


def leaves_more(allowed: Uint32Array, token_ids: Sequence[int]) -> bool:
    """Whether another token than `token_ids`, which are distinct, is allowed."""
    ids = np.asarray(token_ids, dtype=np.int64)
    among = np.count_nonzero(allowed[ids >> 5] >> (ids & 31).astype(np.uint32) & np.uint32(1))
    return bool(np.bitwise_count(allowed).sum() > among)


def pack(token_ids: Sequence[int], vocab_size: int) -> Uint32Array:
    """Return the bits of `token_ids`, uint32[ceil(vocab_size / 32)]."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
