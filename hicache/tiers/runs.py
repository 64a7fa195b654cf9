"""Which slots lie side by side. Knows slot ids only: no memory, no tensors."""

from typing import Final, NamedTuple

import numpy as np

from hicache.keys import Int32Array

# Below this mean length, runs cost more one by one than all their slots together by index.
SHORT_RUN_TOKENS: Final = 6


class Run(NamedTuple):
    """Slots that lie side by side in both pools."""

    source: int
    target: int
    num_slots: int


def runs_between(sources: Int32Array, targets: Int32Array) -> list[Run]:
    """Return the maximal runs of slots that follow each other on both sides, in the order of the arrays."""
    if not len(sources):
        return []
    # Plus one, on both sides at once; where either is not, a run ends.
    breaks = ((np.diff(sources) != 1) | (np.diff(targets) != 1)).nonzero()[0] + 1
    first = np.concatenate(([0], breaks))
    lengths = np.diff(first, append=len(sources))
    return [Run(*run) for run in zip(sources[first].tolist(), targets[first].tolist(), lengths.tolist(), strict=True)]


def check_slots(slots: Int32Array, num_slots: int, side: str) -> None:
    """Raise IndexError if one of `slots` is none of a pool's: a slice would silently copy something else, or less."""
    if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < num_slots:
        raise IndexError(f"{side} slots must be in 0..{num_slots - 1}, got {slots.min()}..{slots.max()}")
