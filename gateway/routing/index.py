"""Which pages lie where, of all workers at once. Knows names and counts; no connection, no clock.

A page has one entry, whoever holds it: a number whose bits are places, three for each holder.

    bit   3 i         3 i + 1     3 i + 2        of holder i
          device      host        expected       (a store has its pages in the first place)

So one walk over a prompt's names follows all workers together: what is left of the holders' bits after a page is who
holds the prompt up to there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.routing.names import KeyNames

DEVICE: Final = 0
HOST: Final = 1
EXPECTED: Final = 2
_PLACES: Final = 3

Counts = dict[bytes, int]  # how often a place holds a page, by name; never 0


class Depth(NamedTuple):
    """How many pages of a prompt, from its beginning, a holder has: without the host, and with it."""

    device: int  # what is expected counts as if it were there
    held: int


class PageIndex:
    """The pages of all holders.

    Invariant: an entry has the bits of exactly those places that count its name, and at least one. There are at most
    `max_pages` entries after each call; those used longest ago are forgotten first, and of one prompt its end before
    its beginning.
    """

    def __init__(self, max_pages: int, on_forgotten: Callable[[int], None] = lambda pages: None) -> None:
        """`on_forgotten` is told how many pages there was no room for."""
        self.max_pages = max_pages
        self.names = KeyNames()
        self._on_forgotten = on_forgotten
        self._pages: OrderedDict[bytes, int] = OrderedDict()
        self._places: list[Counts] = []  # by bit
        self._free: list[int] = []  # numbers of holders that have left

    def __len__(self) -> int:
        return len(self._pages)

    def join(self) -> "Holder":
        """Return a holder of nothing."""
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._places) // _PLACES
            self._places.extend({} for _ in range(_PLACES))
        return Holder(self, number, self._places[number * _PLACES : (number + 1) * _PLACES])

    def match(self, names: Sequence[bytes], holders: Sequence["Holder"]) -> list[Depth]:
        """Return how far each holder has the pages of these names, in their order. Costs O(names + holders)."""
        pages, on_device, held = self._pages, 0, 0
        for holder in holders:
            held |= holder.bit
        on_device = held
        device_ends, held_ends = dict[int, int](), dict[int, int]()  # by bit
        walked = 0
        for name in names:
            mask = pages.get(name, 0)
            on_host_or_device = held & (mask | mask >> HOST | mask >> EXPECTED)
            if on_host_or_device != held:
                _note(held_ends, held ^ on_host_or_device, walked)
                held = on_host_or_device
                if not held:
                    break
            still = on_device & (mask | mask >> EXPECTED)
            if still != on_device:
                _note(device_ends, on_device ^ still, walked)
                on_device = still
            walked += 1
        self.touch(names[:walked])
        _note(device_ends, on_device, walked)
        _note(held_ends, held, walked)
        return [Depth(device_ends.get(holder.bit, 0), held_ends.get(holder.bit, 0)) for holder in holders]

    def touch(self, names: Sequence[bytes]) -> None:
        """These pages of one prompt are in use, its beginning most of all."""
        pages = self._pages
        for name in reversed(names):
            if name in pages:
                pages.move_to_end(name)

    def check(self) -> None:
        """Recompute the invariant from scratch."""
        masks: dict[bytes, int] = {}
        for place, counts in enumerate(self._places):
            for name, count in counts.items():
                assert count > 0, f"a count of {count}"
                masks[name] = masks.get(name, 0) | 1 << place
        assert masks == dict(self._pages), "an entry has other bits than the places that count it"
        assert len(self._pages) <= self.max_pages, f"{len(self._pages)} pages"
        for number in self._free:
            assert not any(self._places[number * _PLACES : (number + 1) * _PLACES]), "who has left holds something"

    def _forget(self) -> None:
        """Make what is over the bound less."""
        too_many = len(self._pages) - self.max_pages
        if too_many <= 0:
            return
        for _ in range(too_many):
            name, mask = self._pages.popitem(last=False)
            for place in _places_of(mask):
                del self._places[place][name]
        self._on_forgotten(too_many)


class Holder:
    """What one worker, or one store, has. Made by `PageIndex.join`.

    A page counts as often as it was stored. One that was forgotten counts from 0 again: its holder is then thought to
    have less than it has, never more.
    """

    __slots__ = ("_counts", "_index", "_number", "bit")

    def __init__(self, index: PageIndex, number: int, counts: list[Counts]) -> None:
        self.bit = 1 << number * _PLACES
        self._index = index
        self._number = number
        self._counts = counts

    def num_pages(self, place: int) -> int:
        """How many different pages a place is known to have."""
        return len(self._counts[place])

    def add(self, place: int, names: Sequence[bytes]) -> None:
        """A place has these pages once more; in the order of their path."""
        self._add(place, names)
        self._index._forget()

    def remove(self, place: int, names: Iterable[bytes]) -> None:
        """A place has these pages once less. Those that it is not known to have are no trouble."""
        counts = self._counts[place]
        for name in names:
            count = counts.get(name)
            if count == 1:
                self._drop(place, name)
            elif count is not None:
                counts[name] = count - 1

    def replace(self, place: int, held: Mapping[bytes, int]) -> None:
        """A place has exactly these pages, each so many times. Costs O(what it had and has)."""
        counts, pages, bit = self._counts[place], self._index._pages, self.bit << place
        for name in [name for name in counts if name not in held]:
            self._drop(place, name)
        for name in held:
            pages[name] = pages.get(name, 0) | bit
        counts.update(held)
        self._index._forget()

    def expect(self, names: Sequence[bytes]) -> list[bytes]:
        """The pages of a prompt are about to be on the device. Returns those that are not there yet."""
        on_device = self._counts[DEVICE]
        missing = [name for name in names if name not in on_device]
        self._add(EXPECTED, missing)
        self._index.touch(names)
        self._index._forget()
        return missing

    def withdraw(self, names: Iterable[bytes]) -> None:
        """Who expected these pages does so no longer."""
        self.remove(EXPECTED, names)

    def confirm(self, names: Iterable[bytes]) -> None:
        """These pages are on the device: nobody has to expect them any more."""
        expected = self._counts[EXPECTED]
        if expected:
            for name in names:
                if name in expected:
                    self._drop(EXPECTED, name)

    def assume(self, names: Sequence[bytes]) -> None:
        """The device has these pages, as far as one can tell who is told nothing; they are in use now."""
        self.add(DEVICE, names)
        counts = self._counts[DEVICE]
        counts.update((name, 1) for name in names if name in counts)

    def clear(self) -> None:
        """Nothing is held, and nothing expected."""
        for place in range(_PLACES):
            self.replace(place, {})

    def leave(self) -> None:
        """There is no such holder any more."""
        self.clear()
        self._index._free.append(self._number)

    def _add(self, place: int, names: Sequence[bytes]) -> None:
        counts, pages, bit = self._counts[place], self._index._pages, self.bit << place
        for name in reversed(names):
            count = counts.get(name)
            if count is None:
                counts[name] = 1
                mask = pages.get(name)
                if mask is None:
                    pages[name] = bit
                    continue
                pages[name] = mask | bit
            else:
                counts[name] = count + 1
            pages.move_to_end(name)

    def _drop(self, place: int, name: bytes) -> None:
        del self._counts[place][name]
        pages = self._index._pages
        mask = pages[name] ^ self.bit << place
        if mask:
            pages[name] = mask
        else:
            del pages[name]


def _note(ends: dict[int, int], bits: int, depth: int) -> None:
    """Write down the depth of each bit; those that are nowhere have none."""
    if not depth:
        return
    while bits:
        lowest = bits & -bits
        ends[lowest] = depth
        bits ^= lowest


def _places_of(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
