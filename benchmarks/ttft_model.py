"""How the time to the first token should grow: a fixed part, a part for each token computed, a part for each key seen.

    TTFT = fixed + per_token * computed + per_pair * pairs

`computed` are the prompt's tokens that were not cached; `pairs` counts, over them, the positions each attends to. The
linear layers are the second term, attention is the third. Knows numbers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """What one prompt costs, given how much of it is cached."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def pairs(self) -> int:
        """A token at position p attends to p + 1 positions, itself among them."""
        return (self.prompt_tokens * (self.prompt_tokens + 1) - self.cached_tokens * (self.cached_tokens + 1)) // 2


@dataclass(frozen=True, slots=True)
class TtftModel:
    """Seconds: `fixed`, for each computed token, for each pair of a token and a position it attends to."""

    fixed_s: float
    per_token_s: float
    per_pair_s: float

    def ttft_s(self, work: Work) -> float:
        return self.fixed_s + self.per_token_s * work.computed + self.per_pair_s * work.pairs


def fit(works: Sequence[Work], ttfts_s: Sequence[float]) -> TtftModel:
    """Return the model whose relative deviations from what was measured have the least squares.

    No part is negative. Needs at least three points; raises ValueError otherwise.
    """
    if len(works) < 3:
        raise ValueError(f"three parts cannot be told from {len(works)} points")
    columns = np.array([[1.0, work.computed, work.pairs] for work in works])
    measured = np.array(ttfts_s, dtype=np.float64)
    found = non_negative_least_squares(columns / measured[:, None], np.ones(len(works)))
    return TtftModel(*(float(part) for part in found))


def deviations(model: TtftModel, works: Sequence[Work], ttfts_s: Sequence[float]) -> list[float]:
    """Return for each point how far the model is off, as a share of what was measured; negative: it promises less."""
    return [model.ttft_s(work) / measured - 1.0 for work, measured in zip(works, ttfts_s, strict=True)]


def non_negative_least_squares(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Return x >= 0 with the smallest |matrix x - target|. Tries every set of columns: for a handful of them."""
    num_columns = matrix.shape[1]
    scale = np.abs(matrix).max(axis=0)
    scaled: FloatArray = matrix / np.where(scale == 0, 1.0, scale)
    best = np.zeros(num_columns)
    best_error = float(np.linalg.norm(target))
    for size in range(1, num_columns + 1):
        for chosen in combinations(range(num_columns), size):
            some, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
            error = float(np.linalg.norm(scaled[:, chosen] @ some - target))
            if (some >= 0).all() and error < best_error:
                best, best_error = np.zeros(num_columns), error
                best[list(chosen)] = some
    result: FloatArray = best / np.where(scale == 0, 1.0, scale)
    return result


def as_report(model: TtftModel, works: Sequence[Work], ttfts_s: Sequence[float]) -> dict[str, Any]:
    """Return the model's parts and its largest deviation, by the names used in every table and JSON here."""
    return {
        "model": {"fixed_s": model.fixed_s, "per_token_s": model.per_token_s, "per_pair_s": model.per_pair_s},
        "max_deviation": max(abs(deviation) for deviation in deviations(model, works, ttfts_s)),
    }
