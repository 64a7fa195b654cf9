import os

import pytest
import torch

from worker.errors import PoolTooSmallError
from worker.model.hardware import available_memory_bytes, has_native_bf16, usable_cores
from worker.model.memory import GIB, default_pool_bytes, slots_in

CPU = torch.device("cpu")


def test_a_pool_left_to_the_worker_is_modest_on_a_large_machine_and_smaller_on_a_small_one() -> None:
    assert default_pool_bytes(500 * GIB) == GIB
    assert default_pool_bytes(2 * GIB) == GIB // 2


@pytest.mark.parametrize(("page_size", "slots"), [(1, 10), (4, 8), (10, 10)])
def test_a_pool_holds_whole_pages(page_size: int, slots: int) -> None:
    assert slots_in(1049, bytes_per_token=100, page_size=page_size) == slots


def test_a_pool_that_holds_no_page_is_refused_with_what_a_page_needs() -> None:
    with pytest.raises(PoolTooSmallError, match="one page of 16 tokens needs 1600"):
        slots_in(1599, bytes_per_token=100, page_size=16)


def test_the_machine_is_read_within_its_bounds() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory_bytes(CPU) <= total


def test_native_bf16_is_what_torch_says_where_torch_says_it() -> None:
    capabilities = torch.cpu.get_capabilities()
    if "avx512_bf16" in capabilities:
        assert has_native_bf16(CPU) == (capabilities["avx512_bf16"] or capabilities["amx_bf16"])
