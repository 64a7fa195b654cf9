"""A worker's tiers: how large, from which setting, and what is said when they cannot be had."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from hicache.copies.fake_transfer import InstantTransfer, ManualTransfer, ignore_done
from hicache.copies.transfer import Copy
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from worker.config import CacheConfig, ShareConfig, StorageConfig
from worker.errors import WorkerStartError
from worker.model.memory import HostSize
from worker.tiers import Tiers, build_tiers, host_size, measured_cost, page_names, warn_if_pageable

torch.set_num_threads(1)

LAYERS = [LayerShape(1, 4, 4), LayerShape(1, 4, 4)]
BYTES_PER_TOKEN = 2 * 8 * 4
DEVICE_SLOTS = 256
PLENTY = 1 << 30


@dataclass(frozen=True)
class SomePool:
    """The size of a device pool, on a device that this machine need not have."""

    num_slots: int = DEVICE_SLOTS
    bytes_per_token: int = BYTES_PER_TOKEN
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - never changes


def built(config: CacheConfig, available_bytes: int = PLENTY) -> Tiers:
    pool = DevicePool(LAYERS, DEVICE_SLOTS, torch.float32, "cpu")
    return build_tiers(config, pool, revision="r", available_bytes=available_bytes, on_done=ignore_done)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Tiers]:
    storage = StorageConfig(url=(tmp_path / "pages").as_uri(), page_size=16)
    tiers = built(CacheConfig(host_ratio=2, storage=storage))
    yield tiers
    tiers.close()


# Sizes


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, HostSize(0, "host_ratio")),
        ({"host_slots": 100}, HostSize(100, "host_slots")),
        ({"host_slots": 0, "host_bytes": PLENTY, "host_ratio": 2}, HostSize(0, "host_slots")),
        ({"host_bytes": 100 * BYTES_PER_TOKEN + 1, "host_ratio": 9}, HostSize(100, "host_bytes")),
        ({"host_bytes": 100 * BYTES_PER_TOKEN, "page_size": 16}, HostSize(96, "host_bytes")),
        ({"host_ratio": 1.5}, HostSize(384, "host_ratio")),
        ({"host_ratio": 0.3, "page_size": 16}, HostSize(64, "host_ratio")),
        ({"host_ratio": 0}, HostSize(0, "host_ratio")),
    ],
)
def test_slots_win_over_bytes_and_bytes_over_the_ratio(settings: dict[str, float], size: HostSize) -> None:
    assert host_size(CacheConfig(**settings), SomePool(), PLENTY) == size  # type: ignore[arg-type]


def test_beside_a_gpu_the_host_has_twice_its_slots_as_far_as_half_of_the_memory_goes() -> None:
    gpu = SomePool(device=torch.device("cuda"))
    assert host_size(CacheConfig(), gpu, PLENTY).num_slots == 2 * DEVICE_SLOTS
    assert host_size(CacheConfig(), gpu, 200 * BYTES_PER_TOKEN).num_slots == 100
    assert host_size(CacheConfig(page_size=16), gpu, 200 * BYTES_PER_TOKEN).num_slots == 96
    assert host_size(CacheConfig(), gpu, 0).num_slots == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host_bytes": 63}, r"worker\.cache\.host_bytes \(63\) is less than one page .* 1 slots of 64 bytes"),
        ({"host_ratio": 0.05, "page_size": 16}, r"worker\.cache\.host_ratio \(0\.05\) is less .* 16 slots .* has 256"),
    ],
)
def test_a_host_tier_of_less_than_a_page_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(WorkerStartError, match=message):
        host_size(CacheConfig(**settings), SomePool(), PLENTY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"host_slots": 1000}, "host_slots"),
        ({"host_bytes": 1000 * BYTES_PER_TOKEN}, "host_bytes"),
        ({"host_ratio": 4}, "host_ratio"),
    ],
)
def test_a_host_pool_larger_than_the_memory_left_is_refused_with_its_setting_and_the_limit(
    settings: dict[str, float], name: str
) -> None:
    with pytest.raises(WorkerStartError) as error:
        built(CacheConfig(**settings), available_bytes=60_000)  # type: ignore[arg-type]
    message = str(error.value)
    assert message.startswith(f"worker.cache.{name}: a host pool of 10")
    assert "only 60000 bytes are available: raise the memory limit of the container or machine" in message


def test_a_ratio_beyond_all_memory_is_refused_like_one_that_is_too_large() -> None:
    with pytest.raises(WorkerStartError, match=r"worker\.cache\.host_ratio: a host pool of .* needs"):
        built(CacheConfig(host_ratio=1e308), available_bytes=60_000)


# What is built


def test_without_a_host_tier_there_are_no_figures_of_it_and_nothing_to_close() -> None:
    tiers = built(CacheConfig())
    assert tiers.cache.tier_stats() is None
    assert (tiers.transfer, tiers.storage, tiers.store, tiers.host_pool) == (None, None, None, None)
    tiers.close()


def test_all_tiers_are_as_configured(stored: Tiers) -> None:
    stats = stored.cache.tier_stats()
    assert stats is not None
    assert stats.host_slots == stats.host_free_slots == 2 * DEVICE_SLOTS
    assert stored.host_pool is not None
    assert stored.host_pool.num_bytes == 2 * DEVICE_SLOTS * BYTES_PER_TOKEN
    assert stored.store is not None
    assert stored.store.name == "file"
    stored.cache.check()


def test_a_tenants_floor_is_kept_from_the_leases_of_others() -> None:
    tiers = built(CacheConfig(shares={"acme": ShareConfig(floor=0.25)}))
    assert tiers.cache.max_lease_slots == DEVICE_SLOTS * 3 // 4


def test_on_the_cpu_a_pool_that_is_not_pinned_is_no_reason_to_warn() -> None:
    with capture_logs() as logs:
        tiers = built(CacheConfig(host_ratio=1))
    tiers.close()
    assert [line["log_level"] for line in logs] == ["info"]
    assert tiers.host_pool is not None
    assert not tiers.host_pool.pinned


def test_beside_a_gpu_a_pool_that_is_not_pinned_is_warned_of_with_the_reason() -> None:
    pool = HostPool(LAYERS, 16, torch.float32, pin="auto", pin_memory=lambda memory: "memlock is 8 MiB")
    with capture_logs() as logs:
        warn_if_pageable(pool, torch.device("cuda"))
    (line,) = logs
    assert (line["log_level"], line["reason"]) == ("warning", "memlock is 8 MiB")


def test_beside_a_gpu_a_pinned_pool_is_no_reason_to_warn() -> None:
    pool = HostPool(LAYERS, 16, torch.float32, pin="auto", pin_memory=lambda memory: "")
    with capture_logs() as logs:
        warn_if_pageable(pool, torch.device("cuda"))
    assert logs == []


def test_a_pool_that_must_be_pinned_and_cannot_be_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(WorkerStartError, match=r"worker\.cache\.host_ratio: .*cannot be pinned, as required: .*CUDA"):
        built(CacheConfig(host_ratio=1, pin="require"))


# Storage


@pytest.mark.parametrize("settings", [{}, {"host_slots": 0}, {"host_ratio": 0}])
def test_storage_without_a_host_tier_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(WorkerStartError, match=r"worker\.cache\.storage\.url needs a host tier: set .*host_ratio"):
        built(CacheConfig(storage=StorageConfig(url="memory://"), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({"page_size": 512}, r"storage\.page_size \(512\) must be at most the slots of the host tier \(256, .*host_r"),
        ({"page_size": 16, "max_prefetch_bytes": 1023}, r"max_prefetch_bytes \(1023\) must be .* 16 tokens: 1024 "),
        ({"page_size": 16, "max_bytes": 1055}, r"max_bytes \(1055\) must be at least one page of 16 tokens: 1056 "),
    ],
)
def test_storage_in_which_no_page_has_room_is_refused(storage: dict[str, int], message: str) -> None:
    config = CacheConfig(host_ratio=1, storage=StorageConfig(url="memory://", **storage))
    with pytest.raises(WorkerStartError, match=message):
        built(config)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://pages", "storage.url must look like file:///folder"),
        ("redis://:hunter2@host/pages", "storage.url must look like redis://host:port/0"),
        ("redis://:hunter2@host/0?socket_timeout=x", "storage.url is malformed"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_without_its_credentials(url: str, message: str) -> None:
    with pytest.raises(WorkerStartError) as error:
        built(CacheConfig(host_ratio=1, storage=StorageConfig(url=url)))
    assert str(error.value).startswith(f"worker.cache.{message}")
    assert "hunter2" not in str(error.value)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    with pytest.raises(WorkerStartError, match=r"worker\.cache\.storage\.url"):
        built(CacheConfig(host_ratio=1, storage=StorageConfig(url=occupied.as_uri())))


# The first measurement


def test_a_first_load_that_does_not_end_is_an_error_that_says_what_can_be_done() -> None:
    with pytest.raises(WorkerStartError, match=r"copies between host and device do not work: .*host_slots = 0 goes"):
        measured_cost(CacheConfig(), ManualTransfer(), num_slots=64, timeout_s=0.01)


def test_a_first_load_that_fails_is_a_warning_and_leaves_the_speed_unknown() -> None:
    def refuse(copy: Copy) -> None:
        raise OSError("no copies today")

    with capture_logs() as logs:
        cost = measured_cost(CacheConfig(), InstantTransfer(refuse), num_slots=64)
    assert [line["log_level"] for line in logs] == ["warning"]
    assert cost.load_tokens_per_s is None


# Names


def test_pages_are_called_the_same_with_a_store_and_without(stored: Tiers) -> None:
    storage = StorageConfig(page_size=16)
    for config in (CacheConfig(storage=storage), CacheConfig(host_ratio=2, storage=storage)):
        tiers = built(config)
        assert (tiers.names.seed, tiers.names.page_size) == (stored.names.seed, stored.names.page_size)
        tiers.close()


def test_another_model_calls_its_pages_otherwise() -> None:
    pool = DevicePool(LAYERS, DEVICE_SLOTS, torch.float32, "cpu")
    other_layout = DevicePool(LAYERS[:1], DEVICE_SLOTS, torch.float32, "cpu")
    seeds = {
        page_names(CacheConfig(), made, revision).seed for made in (pool, other_layout) for revision in ("r", "r2")
    }
    assert len(seeds) == 4


@pytest.mark.parametrize(("page_size", "named"), [(1, 64), (16, 64), (48, 96), (64, 64), (100, 100)])
def test_a_page_of_names_is_whole_pages_of_the_cache(page_size: int, named: int) -> None:
    pool = DevicePool(LAYERS, 4800, torch.float32, "cpu")
    tiers = build_tiers(
        CacheConfig(page_size=page_size), pool, revision="r", available_bytes=PLENTY, on_done=ignore_done
    )
    assert tiers.names.page_size == named
    assert tiers.cache.events is not None
    assert tiers.cache.events.names is tiers.names


def test_workers_that_share_a_folder_know_it_by_any_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "pages")
    urls = [(tmp_path / name).as_uri() for name in ("pages", "link", "other")]
    configs = [CacheConfig(host_ratio=2, storage=StorageConfig(url=url, page_size=16)) for url in urls]
    first, same, other = (_store_id_of(config) for config in configs)
    assert first == same != other
    assert "pages" not in first
    assert _store_id_of(CacheConfig(host_ratio=2)) == ""


def test_a_store_in_memory_is_nobody_elses() -> None:
    config = CacheConfig(host_ratio=2, storage=StorageConfig(url="memory://", page_size=16))
    assert len({_store_id_of(config), _store_id_of(config), ""}) == 3


def _store_id_of(config: CacheConfig) -> str:
    tiers = built(config)
    tiers.close()
    return tiers.store_id
