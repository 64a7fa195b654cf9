"""The slot allocator: runs, their joining, and its refusals."""

import random

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.slots import Int32Array, SlotAllocator


def taken(allocator: SlotAllocator, num_slots: int, after: int | None = None) -> Int32Array:
    slots = allocator.allocate(num_slots, after)
    assert slots is not None
    assert len(slots) == num_slots
    return slots


def num_runs(slots: Int32Array) -> int:
    return 1 + int((np.diff(slots) != 1).sum())


def test_a_fresh_pool_hands_out_one_run() -> None:
    assert num_runs(taken(SlotAllocator(1000), 1000)) == 1


def test_more_than_is_free_is_refused_and_changes_nothing() -> None:
    allocator = SlotAllocator(10)
    taken(allocator, 4)
    before = allocator.free_slots().tolist()
    assert allocator.allocate(7) is None
    assert allocator.free_slots().tolist() == before
    allocator.check()


def test_neighbours_that_come_back_in_any_order_join_to_one_run() -> None:
    allocator = SlotAllocator(90)
    slots = taken(allocator, 90)
    for part in (slots[30:60], slots[60:], slots[:30]):
        allocator.free(part)
        allocator.check()
    assert num_runs(taken(allocator, 90)) == 1


def test_slots_come_back_whatever_their_order() -> None:
    allocator = SlotAllocator(64)
    slots = taken(allocator, 64)
    allocator.free(slots[np.random.default_rng(0).permutation(64)])
    allocator.check()
    assert allocator.num_free == 64


def test_a_run_that_fits_is_preferred_to_pieces() -> None:
    allocator = SlotAllocator(100)
    slots = taken(allocator, 100)
    for first, last in ((0, 5), (20, 52), (60, 63)):
        allocator.free(slots[first:last])
    assert num_runs(taken(allocator, 16)) == 1


def test_a_hole_of_the_right_size_is_filled_before_a_longer_run_is_cut() -> None:
    allocator = SlotAllocator(2000)
    slots = taken(allocator, 2000)
    allocator.free(slots[100:120])
    allocator.free(slots[1000:])
    assert taken(allocator, 20).tolist() == list(range(100, 120))


def test_pieces_are_joined_when_no_run_fits() -> None:
    allocator = SlotAllocator(100)
    slots = taken(allocator, 100)
    allocator.free(slots[::2])
    assert sorted(taken(allocator, 50).tolist()) == list(range(0, 100, 2))
    allocator.check()


def test_a_sequence_goes_on_in_the_slots_behind_its_last_one() -> None:
    allocator = SlotAllocator(1000)
    slots = taken(allocator, 100)
    more = taken(allocator, 50, after=int(slots[-1]))
    assert num_runs(np.concatenate([slots, more])) == 1


def test_the_last_slot_of_the_pool_has_nothing_behind_it() -> None:
    allocator = SlotAllocator(10)
    slots = taken(allocator, 10)
    allocator.free(slots[:2])
    assert taken(allocator, 2, after=9).tolist() == [0, 1]


def test_sequences_that_grow_side_by_side_stay_in_few_runs() -> None:
    allocator = SlotAllocator(32 * 1024)
    sequences = [[int(taken(allocator, 1)[0])] for _ in range(32)]
    for _ in range(199):
        for sequence in sequences:
            sequence.append(int(taken(allocator, 1, after=sequence[-1])[0]))
    assert max(num_runs(np.array(sequence)) for sequence in sequences) == 1
    allocator.check()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_any_mix_of_calls_keeps_every_slot_in_one_hand(page_size: int) -> None:
    choose = random.Random(page_size)
    allocator = SlotAllocator(64 * page_size, page_size)
    held: list[Int32Array] = []
    for _ in range(2000):
        if held and choose.random() < 0.5:
            slots = held.pop(choose.randrange(len(held)))
            cut = choose.randint(0, len(slots) // page_size) * page_size
            allocator.free(slots[cut:])
            held += [slots[:cut]] if cut else []
        else:
            wanted = choose.randint(1, 20) * page_size
            after = int(choose.choice(held)[-1]) if held and choose.random() < 0.5 else None
            slots_or_none = allocator.allocate(wanted, after)
            assert (slots_or_none is None) == (wanted > allocator.num_free + (0 if slots_or_none is None else wanted))
            held += [] if slots_or_none is None else [slots_or_none]
        allocator.check()
        everything = np.concatenate([allocator.free_slots(), *held])
        assert np.array_equal(np.sort(everything), np.arange(64 * page_size))
        assert all((slots[::page_size] % page_size == 0).all() for slots in held)


def test_freeing_twice_is_found_out() -> None:
    allocator = SlotAllocator(10)
    slots = taken(allocator, 10)
    allocator.free(slots)
    with pytest.raises(InvariantError, match="freed twice"):
        allocator.free(slots)


@pytest.mark.parametrize(("num_slots", "page_size"), [(0, 1), (8, 16), (20, 16), (-16, 16), (8, 0)])
def test_a_pool_that_is_no_whole_number_of_pages_is_refused(num_slots: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size"):
        SlotAllocator(num_slots, page_size)


def corrupt_tag(allocator: SlotAllocator) -> None:
    allocator._tags[1] = 3


def corrupt_end(allocator: SlotAllocator) -> None:
    allocator._tags[15] = 0


def corrupt_count(allocator: SlotAllocator) -> None:
    allocator.num_free -= 1


def corrupt_class(allocator: SlotAllocator) -> None:
    size_class = allocator._tags[8].bit_length()
    allocator._runs[size_class].remove(8)
    allocator._runs[1].add(8)


def lose_a_run(allocator: SlotAllocator) -> None:
    allocator._runs[allocator._tags[8].bit_length()].clear()


def overlap(allocator: SlotAllocator) -> None:
    allocator._enter(10, 2)


def misalign(allocator: SlotAllocator) -> None:
    allocator._strike(8, 8)
    allocator._enter(8, 7)


def forget_a_class(allocator: SlotAllocator) -> None:
    allocator._classes = 0


@pytest.mark.parametrize(
    "corrupt",
    [corrupt_tag, corrupt_end, corrupt_count, corrupt_class, lose_a_run, overlap, misalign, forget_a_class],
    ids=lambda corrupt: corrupt.__name__,
)
def test_check_notices(corrupt: object) -> None:
    allocator = SlotAllocator(16, 2)
    taken(allocator, 8)
    allocator.check()
    assert allocator.free_slots().tolist() == list(range(8, 16))
    corrupt(allocator)  # type: ignore[operator]
    with pytest.raises(InvariantError):
        allocator.check()
