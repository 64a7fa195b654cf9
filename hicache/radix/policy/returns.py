"""What LHD learns: which conversations come back, and after how long. No queue, no tree beyond a leaf's ancestors."""

from collections import OrderedDict
from dataclasses import dataclass
from math import frexp

import numpy as np
from numpy.typing import NDArray

from hicache.radix.node import Node

NUM_CLASSES = 8  # turns so far, 0 to 6 and more

_FIRST_EDGE_S = 0.125
_BUCKETS_PER_OCTAVE = 2
_NUM_BUCKETS = 44  # up to 0.125 s * 2^21: three days
_REFRESH_EVERY = 64  # starts; the table of densities is at most that much out of date
_HALVE_EVERY = 1 << 14  # starts; what is older than some such periods is forgotten
_PRIOR_STARTS = 8.0  # what is taken for known at first: so many starts, with returns spread evenly over the octaves
_BORROWED_STARTS = 16.0  # a class is told what all classes do, as if it had seen it that often itself
_MOST_ANCESTORS = 64  # looked at for a leaf; conversations that branch more often count as several
_IDENTIFYING_BYTES = 64  # of a run's beginning

_FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Visit:
    """What a leaf that enters a queue says about its conversation."""

    turn: int  # how often it came back before
    idle_s: float  # since the turn before
    is_new: bool  # False: the leaf is back in a queue without having been used


class Conversations:
    """Who came when, for what is cached and for what was evicted; the longest idle is forgotten first.

    A conversation is a run of nodes that hardly branches, known by its beginning: each turn leaves a node with the old
    tail and the new one behind it. Behind a node with three children or more (a system prompt), each child begins one
    of its own.
    """

    def __init__(self, num_remembered: int) -> None:
        self._num_remembered = num_remembered
        self._seen: OrderedDict[int, tuple[int, float]] = OrderedDict()  # turn and time by beginning

    def visit(self, leaf: Node) -> Visit:
        """Note a leaf as of its last access."""
        now = leaf.last_access_time
        beginning = _beginning(leaf)
        known = self._seen.get(beginning)
        if known is None:
            turn, idle_s, is_new = 0, 0.0, True
        else:
            turn, time = known
            idle_s, is_new = now - time, now > time
            if not is_new:
                return Visit(turn, 0.0, is_new=False)
            turn += 1
        self._seen[beginning] = turn, now
        self._seen.move_to_end(beginning)
        if len(self._seen) > self._num_remembered:
            self._seen.popitem(last=False)
        return Visit(turn, idle_s, is_new)


def _beginning(leaf: Node) -> int:
    node = leaf
    for _ in range(_MOST_ANCESTORS):
        above = node.parent
        if above is None or above.is_root or len(above.children) > 2:
            break
        node = above
    space = None if node.space is None else node.space.namespace
    return hash((space, node.depth - len(node.key), bytes(node.key[:_IDENTIFYING_BYTES])))


class Returns:
    """Counts starts and returns by class and idle time, and makes the table of densities from them."""

    def __init__(self) -> None:
        self._starts = np.zeros(NUM_CLASSES)
        self._returns = np.zeros((NUM_CLASSES, _NUM_BUCKETS))
        self._num_starts = 0
        self._refresh()

    def started(self, turn: int) -> None:
        self._starts[min(turn, NUM_CLASSES - 1)] += 1
        self._num_starts += 1
        if self._num_starts % _HALVE_EVERY == 0:
            self._starts /= 2
            self._returns /= 2
        if self._num_starts % _REFRESH_EVERY == 0:
            self._refresh()

    def returned(self, turn: int, idle_s: float) -> None:
        self._returns[min(turn, NUM_CLASSES - 1), bucket_of(idle_s)] += 1

    def rank(self, group: int, age_s: float) -> tuple[float, float]:
        """Return the density of a class at an age, and what decides within it: the age, where density rises with it."""
        bucket = bucket_of(age_s)
        return self._densities[group][bucket], age_s if bucket < self._peaks[group] else -age_s

    def _refresh(self) -> None:
        densities = densities_of(self._starts, self._returns)
        self._densities: list[list[float]] = densities.tolist()
        self._peaks: list[int] = densities.argmax(axis=1).tolist()


def bucket_of(age_s: float) -> int:
    """Two buckets to an octave; the first one is for all that is younger than 0.125 s."""
    if age_s < _FIRST_EDGE_S:
        return 0
    mantissa, exponent = frexp(age_s / _FIRST_EDGE_S)
    return min(2 * exponent - (mantissa < 0.75), _NUM_BUCKETS - 1)


def _widths() -> _FloatArray:
    """The seconds that each bucket covers."""
    octaves = _FIRST_EDGE_S * 2.0 ** np.arange(_NUM_BUCKETS // 2)
    edges = np.concatenate([[0.0], np.stack([octaves, 1.5 * octaves], axis=1).ravel()])
    return np.diff(edges)[:_NUM_BUCKETS]


_WIDTHS = _widths()


def densities_of(starts: _FloatArray, returns: _FloatArray) -> _FloatArray:
    """float64[classes], float64[classes, buckets] -> float64[classes, buckets]: hits to expect for each second.

    Each row rises to a peak and falls behind it; where the counts say otherwise, the lower value counts.
    """
    all_starts = starts.sum() + _PRIOR_STARTS
    all_returns = returns.sum(axis=0) + _PRIOR_STARTS / 2 / _NUM_BUCKETS
    starts = starts + _BORROWED_STARTS
    returns = returns + _BORROWED_STARTS * all_returns / all_starts
    waiting = np.maximum(starts[:, None] - returns.cumsum(axis=1) + returns / 2, 0.5)
    hits = np.zeros((len(starts), _NUM_BUCKETS + 1))
    seconds = np.zeros_like(hits)
    hits[:, 1:] = returns.cumsum(axis=1)
    seconds[:, 1:] = (waiting * _WIDTHS).cumsum(axis=1)
    # [class, from bucket, to bucket]
    gained = hits[:, None, 1:] - hits[:, :-1, None]
    spent = seconds[:, None, 1:] - seconds[:, :-1, None]
    ratios = np.divide(gained, spent, out=np.zeros_like(gained), where=spent > 0)
    densities: _FloatArray = ratios.max(axis=2)
    for row in densities:
        peak = int(row.argmax())
        row[: peak + 1] = np.minimum.accumulate(row[: peak + 1][::-1])[::-1]
        row[peak:] = np.minimum.accumulate(row[peak:])
    return densities
