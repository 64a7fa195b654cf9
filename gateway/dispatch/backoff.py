"""How long to wait before the next attempt."""

import random


def backoff_ceiling_s(initial_s: float, longest_s: float, attempts: int) -> float:
    """Return the longest wait after so many attempts in vain: doubled each time, up to `longest_s`."""
    return min(longest_s, initial_s * 2.0 ** min(attempts, 30))


def backoff_s(initial_s: float, longest_s: float, attempts: int, at_least: float = 0.0) -> float:
    """Return a random part of that, `at_least` so much: those who failed together shall not come back together."""
    return backoff_ceiling_s(initial_s, longest_s, attempts) * random.uniform(at_least, 1.0)
