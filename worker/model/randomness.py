"""Randomness without state: a uniform number is a function of a seed and a position.

So the same request draws the same numbers on another worker, after a pause, and in any batch.
"""

from hashlib import blake2b

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits, drawn for the token at `position` of a sequence.

    Seeds count modulo 2**64. The hash is BLAKE2b: neighbouring seeds and positions give unrelated numbers.
    """
    counter = (seed & _MASK).to_bytes(8, "little") + position.to_bytes(8, "little")
    bits = int.from_bytes(blake2b(counter, digest_size=8, person=b"rg-sampling").digest(), "little")
    return (bits >> 11) * 2.0**-53
