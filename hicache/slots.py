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

    A free run [start, end) is entered in three places, and a neighbour's run is joined at once when slots come back:

        slot      start          ...          end-1
        _length   end - start    (stale 0)    end - start      boundary tags, 0 everywhere else
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
        self.num_free = 0
        self._length = array("i", bytes(4 * num_slots))
        self._runs: list[set[int]] = [set() for _ in range(num_slots.bit_length() + 1)]
        self._classes = 0  # bit k is set while _runs[k] is not empty
        self._add(0, num_slots)

    def allocate(self, num_slots: int, after: int | None = None) -> Int32Array | None:
        """Return `num_slots` free slots (a multiple of the page size), or None and change nothing.

        `after` is the slot that precedes them in their sequence: the run behind it goes first.
        """
        if num_slots > self.num_free:
            return None
        if after is not None and after + 1 < self.num_slots:
            length = self._length[after + 1]
            # A free run ends before `after`, so a tag behind it can only be the start of a run.
            if length >= num_slots:
                return self._carve(after + 1, length, after + 1, num_slots)
            if length:
                head = self._carve(after + 1, length, after + 1, length)
                return np.concatenate([head, *self._gather(num_slots - length)])
        taken = self._gather(num_slots)
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def free(self, slots: Int32Array) -> None:
        """Take back whole pages, in any order."""
        num_slots = len(slots)
        if not num_slots:
            return
        if num_slots == 1:
            self._release(int(slots[0]), 1)
            return
        breaks = np.flatnonzero(slots[1:] != slots[:-1] + 1)
        if not len(breaks):
            self._release(int(slots[0]), num_slots)
            return
        bounds = [0, *(breaks + 1).tolist(), num_slots]
        starts = slots[bounds[:-1]].tolist()
        for index, start in enumerate(starts):
            self._release(start, bounds[index + 1] - bounds[index])

    def free_slots(self) -> Int32Array:
        """Every free slot in ascending order: int32[num_free]."""
        runs = sorted(start for starts in self._runs for start in starts)
        if not runs:
            return np.empty(0, dtype=np.int32)
        return np.concatenate([np.arange(start, start + self._length[start], dtype=np.int32) for start in runs])

    def check(self) -> None:
        """Raise InvariantError unless runs, tags, classes and the count agree."""
        tags = 0
        previous_end = -1
        for start, size_class in sorted((start, k) for k, starts in enumerate(self._runs) for start in starts):
            length = self._length[start]
            if length < 1 or length.bit_length() != size_class:
                raise InvariantError(f"free run at slot {start} of length {length} lies in size class {size_class}")
            if start + length > self.num_slots or self._length[start + length - 1] != length:
                raise InvariantError(f"free run at slot {start} does not end where its length {length} says")
            if start % self.page_size or length % self.page_size:
                raise InvariantError(f"free run at slot {start} of length {length} does not consist of whole pages")
            if start <= previous_end:
                raise InvariantError(f"free run at slot {start} overlaps or touches the one before it")
            previous_end = start + length
            tags += 1 if length == 1 else 2
        if tags != np.count_nonzero(np.frombuffer(self._length, dtype=np.int32)):
            raise InvariantError("a slot carries the tag of a free run that does not exist")
        if self._classes != sum(1 << k for k, starts in enumerate(self._runs) if starts):
            raise InvariantError("the size classes in use are not those of the free runs")
        if len(self.free_slots()) != self.num_free:
            raise InvariantError(f"{len(self.free_slots())} slots are free, {self.num_free} are counted")

    def _gather(self, num_slots: int) -> list[Int32Array]:
        """Take slots that are known to be free: one run that fits if one is found, otherwise the longest ones."""
        if num_slots == self.page_size:
            return [self._seed()]
        taken: list[Int32Array] = []
        while num_slots:
            start = self._find(num_slots)
            length = self._length[start]
            taken.append(self._carve(start, length, start, min(length, num_slots)))
            num_slots -= min(length, num_slots)
        return taken

    def _seed(self) -> Int32Array:
        """Take one page for a sequence that will grow page by page.

        It lies in the middle of a longest run: the slots behind it stay free for its next pages (`after`) instead of
        going to whoever else grows.
        """
        start = self._peek(self._classes.bit_length() - 1)
        length = self._length[start]
        middle = start + length // self.page_size // 2 * self.page_size
        return self._carve(start, length, middle, self.page_size)

    def _find(self, num_slots: int) -> int:
        """Return the start of a free run: a tight one that fits if there is one, otherwise one of the longest."""
        size_class = num_slots.bit_length()
        if self._classes >> size_class & 1:  # runs of this class may fit or not; look at one
            start = self._peek(size_class)
            if self._length[start] >= num_slots:
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

    def _carve(self, start: int, length: int, first: int, num_slots: int) -> Int32Array:
        """Take [first, first + num_slots) out of the free run [start, start + length); the rest stays free."""
        self._remove(start, length)
        if first > start:
            self._add(start, first - start)
        if first + num_slots < start + length:
            self._add(first + num_slots, start + length - first - num_slots)
        return np.arange(first, first + num_slots, dtype=np.int32)

    def _release(self, start: int, length: int) -> None:
        """Free [start, start + length), joined with the free runs on both sides."""
        tags = self._length
        end = start + length
        if tags[start] or tags[end - 1]:
            raise InvariantError(f"slots {start}..{end - 1} are freed twice")
        before = tags[start - 1] if start else 0
        if before:
            start -= before
            self._remove(start, before)
        after = tags[end] if end < self.num_slots else 0
        if after:
            self._remove(end, after)
            end += after
        self._add(start, end - start)

    def _add(self, start: int, length: int) -> None:
        self._length[start] = self._length[start + length - 1] = length
        size_class = length.bit_length()
        self._runs[size_class].add(start)
        self._classes |= 1 << size_class
        self.num_free += length

    def _remove(self, start: int, length: int) -> None:
        self._length[start] = self._length[start + length - 1] = 0
        size_class = length.bit_length()
        starts = self._runs[size_class]
        starts.remove(start)
        if not starts:
            self._classes ^= 1 << size_class
        self.num_free -= length
