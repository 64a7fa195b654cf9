"""What a simulated token's KV is: a digest of all tokens up to it.

So a slot that holds what it should not changes the tokens that follow, as it would with a model. The digest of a
history is the sum of what its tokens are at their places, modulo 2**64: a chunk's are made by one cumulative sum.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.batch import Int32Array

Digests = NDArray[np.uint64]

_TOKEN: Final = np.uint64(0x9E3779B97F4A7C15)
_POSITION: Final = np.uint64(0xD1B54A32D192ED03)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_MASK: Final = (1 << 64) - 1


def steps(token_ids: Int32Array, positions: Int32Array) -> Digests:
    """Return what each token at its position adds to the digest of its history: uint64[tokens]."""
    mixed: Digests = token_ids.astype(np.uint64)
    mixed += np.uint64(1)
    mixed *= _TOKEN
    mixed += positions.astype(np.uint64) * _POSITION
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def scrambled(digest: int, number: int = 0) -> int:
    """Return 64 bits that say nothing of one another for neighbouring digests and numbers."""
    mixed = (digest + (number + 1) * int(_TOKEN)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * int(_FIRST)) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * int(_SECOND)) & _MASK
    return mixed ^ (mixed >> 31)


def digest_of(token_ids: Int32Array, origin: int = 0) -> int:
    """Return the digest of a whole history, which begins at `origin`."""
    return (origin + int(steps(token_ids, np.arange(len(token_ids), dtype=np.int32)).sum(dtype=np.uint64))) & _MASK
