"""Several completions of one prompt: how they differ. Knows neither sequences nor steps."""

from dataclasses import replace
from hashlib import blake2b

from worker.batch import SamplingParams


def branch_params(params: SamplingParams, index: int) -> SamplingParams:
    """Return how the completion of this index samples: number 0 as a request for a single one would."""
    return params if index == 0 else replace(params, seed=branch_seed(params.seed, index))


def branch_seed(seed: int, index: int) -> int:
    """Return the seed of a completion, 64 bits: number 0 has the request's own, the others have unrelated ones."""
    if index == 0:
        return seed
    counter = seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(blake2b(counter, digest_size=8, person=b"rg-branch").digest(), "little")
