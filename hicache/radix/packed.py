"""Comparison of packed tokens: memcmp first, then the first element that differs. No loop over tokens."""

import numpy as np

from hicache.keys import TOKEN_BYTES, TOKEN_DTYPE

_FIRST_BLOCK = 256  # tokens; a difference is sought in blocks that grow from here


def shared_bytes(packed: bytes, offset: int, stop: int, key: bytearray, page_bytes: int) -> int:
    """Return how many bytes, in whole pages, `packed[offset:stop]` and `key` have in common at their start."""
    size = min(stop - offset, len(key))
    if size == len(key) and packed.startswith(key, offset):
        return size
    num_tokens = size // TOKEN_BYTES
    ours = np.frombuffer(packed, dtype=TOKEN_DTYPE, count=num_tokens, offset=offset)
    theirs = np.frombuffer(key, dtype=TOKEN_DTYPE, count=num_tokens)
    start, block = 0, _FIRST_BLOCK
    while start < num_tokens:
        differs = ours[start : start + block] != theirs[start : start + block]
        first = int(differs.argmax())
        if differs[first]:
            same = (start + first) * TOKEN_BYTES
            return same - same % page_bytes
        start += block
        block *= 4
    return size - size % page_bytes
