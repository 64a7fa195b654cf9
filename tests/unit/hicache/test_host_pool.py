import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from hicache.keys import Int32Array
from hicache.tiers.device import DevicePool, LayerShape, fetch_page
from hicache.tiers.host import HostPool, HostPoolError, Pin
from hicache.tiers.layout import PoolLayout
from hicache.tiers.memory import HUGE_PAGE_BYTES, allocate

torch.set_num_threads(1)

# Layer 1 differs from the others, and its K from its V; all that are 16 wide share a group.
LAYERS = [LayerShape(2, 8, 8), LayerShape(1, 4, 16), LayerShape(2, 8, 8)]
BF16 = torch.bfloat16


def host_pool(num_slots: int = 40, layers: list[LayerShape] = LAYERS, dtype: torch.dtype = BF16) -> HostPool:
    return HostPool(layers, num_slots, dtype, pin="never")


def filled(num_slots: int = 40) -> HostPool:
    pool = host_pool(num_slots)
    for group in pool.planes.groups:
        group.normal_()
    return pool


def slots(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def test_a_page_is_every_plane_of_a_group_token_by_token_and_group_after_group() -> None:
    pool = DevicePool(LAYERS, 10, torch.int16, "cpu")
    tensors = [tensor for layer in range(3) for tensor in (pool.key(layer), pool.value(layer))]
    for number, tensor in enumerate(tensors):
        tensor.copy_(1_000 * number + 100 * torch.arange(10)[:, None, None])
    page = np.frombuffer(pool.read_page(slots(7, 3)), dtype=np.int16)
    # 16 wide: K0, V0, V1, K2, V2; then what is 4 wide: K1.
    expected = [value for plane in (0, 1, 3, 4, 5) for slot in (7, 3) for value in 16 * [1_000 * plane + 100 * slot]]
    expected += [value for slot in (7, 3) for value in 4 * [2_000 + 100 * slot]]
    assert page.tolist() == expected


def test_a_page_is_the_same_whatever_the_slots_the_pool_and_the_tier() -> None:
    small, large = filled(num_slots=40), host_pool(num_slots=700)
    device = DevicePool(LAYERS, 64, BF16, "cpu")
    page = small.read_page(slots(5, 6, 7, 8, 30, 2))
    assert len(page) == small.page_bytes(6) == 6 * small.bytes_per_token
    large.write_page(slots(699, 0, 1, 2, 3, 350), page)
    assert large.read_page(slots(699, 0, 1, 2, 3, 350)) == page
    for group, other in zip(device.planes.groups, large.planes.groups, strict=True):
        group[:, 10] = other[:, 699]
        group[:, 20:25] = other[:, [0, 1, 2, 3, 350]]
    assert device.read_page(slots(10, 20, 21, 22, 23, 24)) == page


def test_the_layout_is_told_in_words_that_do_not_change_between_versions() -> None:
    expected = f"radixgate.kv 1 torch.bfloat16 {sys.byteorder} 2x8+8 1x4+16 2x8+8"
    assert host_pool().layout() == expected.encode()


def test_a_written_page_changes_its_own_slots_only() -> None:
    pool = filled()
    others = slots(*(slot for slot in range(40) if slot not in {3, 4, 20}))
    before = pool.read_page(others)
    pool.write_page(slots(3, 20, 4), bytes(pool.page_bytes(3)))
    assert pool.read_page(slots(3, 4, 20)) == bytes(pool.page_bytes(3))
    assert pool.read_page(others) == before


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_page_of_another_size_is_refused_and_nothing_written(wrong: int) -> None:
    pool = filled()
    before = pool.read_page(slots(0, 1))
    with pytest.raises(ValueError, match=f"a page of 2 tokens has {pool.page_bytes(2)} bytes, got"):
        pool.write_page(slots(0, 1), bytes(pool.page_bytes(2) + wrong))
    assert pool.read_page(slots(0, 1)) == before


@pytest.mark.parametrize("slot", [-1, 40])
def test_a_page_in_slots_that_there_are_not_is_refused(slot: int) -> None:
    pool = filled()
    with pytest.raises(IndexError, match=r"host slots must be in 0\.\.39"):
        pool.read_page(slots(0, slot))
    with pytest.raises(IndexError, match=r"host slots must be in 0\.\.39"):
        pool.write_page(slots(0, slot), bytes(pool.page_bytes(2)))
    with pytest.raises(IndexError, match=r"device slots must be in 0\.\.3"):
        DevicePool(LAYERS, 4, BF16, "cpu").read_page(slots(0, slot))


def test_a_page_fetched_from_another_device_is_the_same_bytes() -> None:
    pool = filled()
    assert fetch_page(pool.planes, slots(9, 3, 4)) == pool.read_page(slots(9, 3, 4))


def test_the_layout_tells_shapes_types_and_formats_apart_and_not_sizes() -> None:
    assert host_pool(4).layout() == host_pool(9).layout() == DevicePool(LAYERS, 7, BF16, "cpu").layout()
    others = [
        host_pool(4, dtype=torch.float16),
        host_pool(4, LAYERS[:2]),
        host_pool(4, [LayerShape(2, 8, 8), LayerShape(1, 16, 4), LayerShape(2, 8, 8)]),
        host_pool(4, [LayerShape(1, 16, 16), *LAYERS[1:]]),
    ]
    assert len({pool.layout() for pool in (host_pool(4), *others)}) == 5


def test_layers_of_one_shape_lie_in_one_tensor() -> None:
    layout = PoolLayout([LayerShape(3, 64, 64)] * 30, BF16)
    assert (layout.widths, layout.num_planes) == ((192,), (60,))
    assert layout.bytes_per_token == 23_040


def test_a_layer_without_heads_or_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one head and one dimension"):
        LayerShape(2, 0, 8)


def test_memory_is_zeroed_and_can_be_written_wherever_it_was_made() -> None:
    with torch.inference_mode():
        pool = host_pool()
    assert pool.read_page(slots(*range(40))) == bytes(pool.page_bytes(40))
    pool.planes.groups[0][0, 0] = 1.0


@pytest.mark.parametrize("num_bytes", [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
def test_memory_has_the_size_that_was_asked_for_and_large_memory_begins_a_huge_page(num_bytes: int) -> None:
    memory = allocate(num_bytes)
    assert (memory.numel(), memory.dtype, bool(memory.any())) == (num_bytes, torch.uint8, False)
    if num_bytes >= HUGE_PAGE_BYTES:
        assert memory.data_ptr() % HUGE_PAGE_BYTES == 0


def test_a_pool_larger_than_what_is_available_is_refused_before_it_is_touched() -> None:
    needed = 1_000 * PoolLayout(LAYERS, BF16).bytes_per_token
    with pytest.raises(HostPoolError, match=f"1000 slots needs {needed} bytes, and only {needed - 1} bytes are"):
        HostPool(LAYERS, 1_000, BF16, pin="never", available_bytes=needed - 1)
    assert HostPool(LAYERS, 1_000, BF16, pin="never", available_bytes=needed).num_bytes == needed


def test_a_pool_that_the_system_refuses_fails_at_once_with_its_size() -> None:
    with pytest.raises(HostPoolError, match=r"needs \d+ bytes, and the system refused .*raise the memory limit"):
        HostPool(LAYERS, 1 << 44, BF16, pin="never")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_without_cuda_a_pool_is_pageable_unless_pinning_is_required() -> None:
    pool = HostPool(LAYERS, 4, BF16, pin="auto")
    assert (pool.pinned, pool.unpinned_reason) == (False, "there is no CUDA device")
    with pytest.raises(HostPoolError, match="cannot be pinned, as required: there is no CUDA device"):
        HostPool(LAYERS, 4, BF16, pin="require")


@pytest.mark.parametrize("pin", ["auto", "require"])
def test_every_tensor_of_a_pinned_pool_is_pinned(pin: Pin) -> None:
    pinned: list[Tensor] = []

    def lock(memory: Tensor) -> str:
        pinned.append(memory)
        return ""

    pool = HostPool(LAYERS, 4, BF16, pin=pin, pin_memory=lock)
    assert pool.pinned
    assert [memory.data_ptr() for memory in pinned] == [group.data_ptr() for group in pool.planes.groups]


def test_a_pool_that_cannot_be_pinned_says_why_or_fails_as_configured() -> None:
    def refuse(memory: Tensor) -> str:
        return f"memlock is too small for {memory.nbytes} bytes" if memory.shape[-1] == 4 else ""

    pool = HostPool(LAYERS, 4, BF16, pin="auto", pin_memory=refuse)
    assert (pool.pinned, pool.unpinned_reason) == (False, "memlock is too small for 32 bytes")
    with pytest.raises(HostPoolError, match="memlock is too small"):
        HostPool(LAYERS, 4, BF16, pin="require", pin_memory=refuse)


def test_pinning_that_is_switched_off_is_not_tried() -> None:
    def fail(memory: Tensor) -> str:
        raise AssertionError(f"{memory.nbytes} bytes were to stay pageable")

    assert HostPool(LAYERS, 4, BF16, pin="never", pin_memory=fail).unpinned_reason == "pinning is switched off"
