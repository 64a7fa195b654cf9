"""Whether paired measurements differ: Wilcoxon's signed-rank test, which assumes no distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SignedRanks:
    """The result over the pairs that differ at all."""

    pairs: int
    p_value: float  # two-sided, normal approximation
    # Rank-biserial correlation, -1 to 1: 1 where every difference is positive, 0 where there is none either way.
    effect: float


def signed_ranks(differences: Sequence[float]) -> SignedRanks:
    """Test whether differences lie around zero. Needs some twenty of them for its p-value to mean much.

    Source: F. Wilcoxon, Individual comparisons by ranking methods (1945); with corrections for ties and continuity.
    """
    values = np.asarray([value for value in differences if value != 0.0])
    n = len(values)
    if n == 0:
        return SignedRanks(0, 1.0, 0.0)
    sizes, places, counts = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[places]  # ties share the mean of their ranks
    positive = float(ranks[values > 0].sum())
    total = n * (n + 1) / 2
    variance = n * (n + 1) * (2 * n + 1) / 24 - float(((counts**3 - counts) / 48).sum())
    distance = max(abs(positive - total / 2) - 0.5, 0.0)
    p_value = math.erfc(distance / math.sqrt(variance) / math.sqrt(2)) if variance > 0 and len(sizes) else 1.0
    return SignedRanks(n, p_value, (2 * positive - total) / total)
