"""Which slots of a pool are free. Knows slot ids only: no tokens, no tensors, no tree.

Free slots are kept as maximal runs, so that what is handed out is contiguous where it can be: copies between tiers are
several times faster over runs than over scattered slots.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from hicache.errors import InvariantError

Int32Array = NDArray[np.int32]


class SlotAllocator:
    """Hands out slot ids in multiples of a page. Invariant: an id is free or owned by exactly one caller.

    A free run [start, end) is entered in three places, and joined at once with the free runs beside it:

        slot      start          ...          end - 1
        _tags     end - start    0            end - start      0 on every slot that is not free, too
        _runs[k]  {start}                                      k = bit length of (end - start)

    Allocating and freeing cost O(runs touched), never O(pool).
    """

    def __init__(self, num_slots: int, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        if num_slots < page_size or num_slots % page_size:
            raise ValueError(f"num_slots must be a positive multiple of page_size {page_size}, got {num_slots}")
        self.num_slots = num_slots
        self.page_size = page_size
        self.num_free = num_slots
        # One tag more than there are slots: the last slot has a neighbour too, and so has slot 0 (at index -1).
        self._tags = array("i", bytes(4 * (num_slots + 1)))
        self._runs: list[set[int]] = [set() for _ in range(num_slots.bit_length() + 1)]
        self._classes = 0  # bit k is set while _runs[k] is not empty
        self._ids = np.arange(num_slots, dtype=np.int32)  # what is handed out are copies and views of it
        self._ids.flags.writeable = False
        self._enter(0, num_slots)

    def allocate(self, num_slots: int, after: int | None = None) -> Int32Array | None:
        """Return `num_slots` free slots (a multiple of the page size), or None and change nothing.

        `after` is the slot that precedes them in their sequence: the run behind it goes first. The array is read-only.
        """
        if num_slots > self.num_free:
            return None
        self.num_free -= num_slots
        if after is None:
            return self._gather(num_slots)
        # `after` is not free, so a tag behind it can only be the start of a run.
        behind = min(self._tags[after + 1], num_slots)
        if not behind:
            return self._gather(num_slots)
        head = self._carve(after + 1, after + 1, behind)
        return head if behind == num_slots else np.concatenate((head, self._gather(num_slots - behind)))

    def free(self, slots: Int32Array) -> None:
        """Take back whole pages, in any order."""
        num_slots = len(slots)
        if not num_slots:
            return
        self.num_free += num_slots
        if num_slots == 1:
            self._release(int(slots[0]), 1)
            return
        breaks = (slots[1:] != slots[:-1] + 1).nonzero()[0]
        if not len(breaks):
            self._release(int(slots[0]), num_slots)
            return
        last = (*breaks.tolist(), num_slots - 1)
        first = 0
        for start, end in zip((int(slots[0]), *slots[breaks + 1].tolist()), last, strict=True):
            self._release(start, end + 1 - first)
            first = end + 1

    def free_slots(self) -> Int32Array:
        """Every free slot in ascending order: int32[num_free]."""
        runs = sorted(start for starts in self._runs for start in starts)
        return np.concatenate([self._ids[:0], *(self._ids[start : start + self._tags[start]] for start in runs)])

    def check(self) -> None:
        """Raise InvariantError unless runs, tags, classes and the count agree."""
        covered = np.zeros(self.num_slots, dtype=bool)
        previous_end = -1
        for start, size_class in sorted((start, k) for k, starts in enumerate(self._runs) for start in starts):
            length = self._tags[start]
            if length < 1 or length.bit_length() != size_class:
                raise InvariantError(f"free run at slot {start} of length {length} lies in size class {size_class}")
            if start + length > self.num_slots or self._tags[start + length - 1] != length:
                raise InvariantError(f"free run at slot {start} does not end where its length {length} says")
            if start % self.page_size or length % self.page_size:
                raise InvariantError(f"free run at slot {start} of length {length} does not consist of whole pages")
            if start <= previous_end:
                raise InvariantError(f"free run at slot {start} overlaps or touches the one before it")
            previous_end = start + length
            covered[start:previous_end] = True
        tagged = np.frombuffer(self._tags, dtype=np.int32) != 0
        if tagged[-1] or (tagged[:-1] & ~covered).any():
            raise InvariantError("a slot carries the tag of a free run, and lies in none")
        if self._classes != sum(1 << k for k, starts in enumerate(self._runs) if starts):
            raise InvariantError("the size classes in use are not those of the free runs")
        if covered.sum() != self.num_free:
            raise InvariantError(f"{covered.sum()} slots are free, {self.num_free} are counted")

    def _gather(self, num_slots: int) -> Int32Array:
        """Take slots that are known to be free: one run that fits if one is found, otherwise the longest ones."""
        if num_slots == self.page_size:
            return self._seed()
        start = self._find(num_slots)
        length = self._tags[start]
        if length >= num_slots:
            return self._carve(start, start, num_slots)
        taken = [self._carve(start, start, length)]
        while num_slots := num_slots - length:
            start = self._find(num_slots)
            length = min(self._tags[start], num_slots)
            taken.append(self._carve(start, start, length))
        return np.concatenate(taken)

    def _seed(self) -> Int32Array:
        """Take one page for a sequence that will grow page by page.

        It lies in the middle of a longest run: the slots behind it stay free for its next pages (`after`) instead of
        going to whoever else grows.
        """
        start = self._peek(self._classes.bit_length() - 1)
        middle = start + self._tags[start] // self.page_size // 2 * self.page_size
        return self._carve(start, middle, self.page_size)

    def _find(self, num_slots: int) -> int:
        """Return the start of a free run: a tight one that fits if there is one, otherwise one of the longest."""
        size_class = num_slots.bit_length()
        if self._classes >> size_class & 1:  # runs of this class may fit or not; look at one
            start = self._peek(size_class)
            if self._tags[start] >= num_slots:
                return start
        fitting = self._classes >> size_class + 1  # runs of these classes all fit
        if fitting:
            return self._peek(size_class + (fitting & -fitting).bit_length())
        return self._peek(self._classes.bit_length() - 1)

    def _peek(self, size_class: int) -> int:
        starts = self._runs[size_class]
        start = starts.pop()
        starts.add(start)
        return start

    def _carve(self, start: int, first: int, num_slots: int) -> Int32Array:
        """Take [first, first + num_slots) out of the free run at `start`; the rest of it stays free."""
        end = start + self._tags[start]
        stop = first + num_slots
        self._strike(start, end - start)
        if first > start:
            self._enter(start, first - start)
        if stop < end:
            self._enter(stop, end - stop)
        return self._ids[first:stop]

    def _release(self, start: int, length: int) -> None:
        """Free [start, start + length), joined with the free runs on both sides."""
        tags = self._tags
        end = start + length
        if tags[start] or tags[end - 1]:
            raise InvariantError(f"slots {start}..{end - 1} are freed twice")
        before = tags[start - 1]
        if before:
            start -= before
            self._strike(start, before)
        after = tags[end]
        if after:
            self._strike(end, after)
            end += after
        self._enter(start, end - start)

    def _enter(self, start: int, length: int) -> None:
        self._tags[start] = self._tags[start + length - 1] = length
        size_class = length.bit_length()
        self._runs[size_class].add(start)
        self._classes |= 1 << size_class

    def _strike(self, start: int, length: int) -> None:
        self._tags[start] = self._tags[start + length - 1] = 0
        size_class = length.bit_length()
        starts = self._runs[size_class]
        starts.remove(start)
        if not starts:
            self._classes ^= 1 << size_class
