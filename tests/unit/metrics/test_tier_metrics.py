"""What a worker shows of the tiers below the device."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.stats import CopyDurations, TierStats
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageName
from metrics.tiers import StoreCollector
from metrics.worker import WorkerMetrics

BYTES_PER_TOKEN = 64
NAMES = [PageName(b"g" * 16, bytes([number] * 16)) for number in range(3)]


def stats(**figures: int | float) -> TierStats:
    """Figures of a cache, 0 where nothing else is said."""
    return TierStats(**{field.name: 0 for field in fields(TierStats)} | figures)  # type: ignore[arg-type]


def shown_by_a_host_tier() -> WorkerMetrics:
    metrics = WorkerMetrics("w0")
    metrics.host_pool(pinned=False, num_bytes=4096, bytes_per_token=BYTES_PER_TOKEN)
    return metrics


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"worker": "w0", **labels})


def names_of(metrics: WorkerMetrics) -> set[str]:
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_nothing_speaks_of_tiers_that_are_not_there() -> None:
    metrics = WorkerMetrics("w0")
    metrics.tiers_changed(stats(host_slots=8))
    tiers = {sample.labels.get("tier") for family in metrics.registry.collect() for sample in family.samples}
    assert tiers <= {None, "device"}
    below = ("host", "mirror", "loaded_back", "load_back", "prefetch", "storage", "saved", "settled", "stalls")
    assert not [name for name in names_of(metrics) if any(word in name for word in below)]


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_host_slots_by_state_add_up_to_the_pool(free: int, cached: int, others: int) -> None:
    metrics = shown_by_a_host_tier()
    metrics.tiers_changed(
        stats(host_slots=free + cached + others, host_free_slots=free, host_cached_slots=cached, settled_slots=3)
    )
    by_state = {
        state: value(metrics, "radixgate_slots", tier="host", state=state) for state in ("free", "evictable", "in_use")
    }
    assert by_state == {"free": free, "evictable": cached, "in_use": others}
    assert value(metrics, "radixgate_settled_slots") == 3


@pytest.mark.parametrize(
    ("total", "name"),
    [
        ("mirrored_tokens", "radixgate_mirrored_tokens_total"),
        ("mirror_failures", "radixgate_mirror_failures_total"),
        ("lost_tokens", "radixgate_dropped_mirror_tokens_total"),
        ("loaded_tokens", "radixgate_loaded_back_tokens_total"),
        ("load_failures", "radixgate_load_back_failures_total"),
        ("declined_loads", "radixgate_declined_load_backs_total"),
        ("stalls", "radixgate_copy_stalls_total"),
        ("fetched_tokens", "radixgate_prefetched_tokens_total"),
        ("sought_tokens", "radixgate_prefetch_sought_tokens_total"),
        ("failed_fetches", "radixgate_prefetch_failures_total"),
        ("late_fetches", "radixgate_late_prefetches_total"),
        ("saved_pages", "radixgate_saved_pages_total"),
        ("failed_saves", "radixgate_save_failures_total"),
        ("skipped_saves", "radixgate_skipped_save_pages_total"),
    ],
)
def test_a_total_shows_as_a_counter_that_only_grows(total: str, name: str) -> None:
    metrics = shown_by_a_host_tier()
    assert value(metrics, name) == 0
    for now, shown in [(5, 5), (5, 5), (7, 7), (6, 7), (8, 9)]:
        metrics.tiers_changed(stats(**{total: now}))
        assert value(metrics, name) == shown


@pytest.mark.parametrize(
    ("total", "kind"),
    [("mirrored_tokens", "mirrored"), ("loaded_tokens", "loaded_back"), ("fetched_tokens", "prefetched")],
)
def test_what_is_moved_shows_in_bytes_as_well(total: str, kind: str) -> None:
    metrics = shown_by_a_host_tier()
    metrics.tiers_changed(stats(**{total: 10}))
    metrics.tiers_changed(stats(**{total: 30}))
    assert value(metrics, f"radixgate_{kind}_tokens_total") == 30
    assert value(metrics, f"radixgate_{kind}_bytes_total") == 30 * BYTES_PER_TOKEN


def test_evictions_from_the_host_are_told_from_those_from_the_device() -> None:
    metrics = shown_by_a_host_tier()
    metrics.evicted(5)
    metrics.tiers_changed(stats(host_lost_tokens=3))
    assert value(metrics, "radixgate_evicted_tokens_total", tier="device") == 5
    assert value(metrics, "radixgate_evicted_tokens_total", tier="host") == 3


@pytest.mark.parametrize("pinned", [True, False])
def test_a_host_pool_shows_its_size_and_whether_it_is_pinned(pinned: bool) -> None:
    metrics = WorkerMetrics("w0")
    metrics.host_pool(pinned=pinned, num_bytes=4096, bytes_per_token=BYTES_PER_TOKEN)
    assert value(metrics, "radixgate_host_pool_bytes") == 4096
    assert value(metrics, "radixgate_host_pool_pinned") == pinned


def test_bytes_that_prefetches_may_bring_show_while_they_are_under_way() -> None:
    metrics = shown_by_a_host_tier()
    metrics.tiers_changed(stats(fetch_reserved_bytes=512))
    assert value(metrics, "radixgate_prefetch_reserved_bytes") == 512
    metrics.tiers_changed(stats())
    assert value(metrics, "radixgate_prefetch_reserved_bytes") == 0


def test_a_stores_figures_are_those_of_the_moment_somebody_looks() -> None:
    metrics, store = WorkerMetrics("w0"), MemoryStore(max_bytes=200)
    metrics.storage(store)

    def shown(name: str) -> float | None:
        return value(metrics, f"radixgate_storage_{name}", store="memory")

    assert (shown("pages"), shown("bytes"), shown("missing_pages_total")) == (0, 0, 0)
    store.put([(NAMES[0], b"x" * 50), (NAMES[1], b"y" * 50), (NAMES[2], b"z" * 50)])
    store.get(NAMES)
    held = store.stats()
    assert (shown("pages"), shown("bytes")) == (held.num_pages, held.num_bytes) == (2, 2 * (50 + 32))
    assert (shown("found_pages_total"), shown("missing_pages_total"), shown("evicted_pages_total")) == (2, 1, 1)
    assert shown("corrupt_pages_total") == 0


def test_what_a_store_describes_is_what_it_shows() -> None:
    collector = StoreCollector(MemoryStore(max_bytes=100), "w0")
    assert [family.name for family in collector.describe()] == [family.name for family in collector.collect()]


@pytest.mark.parametrize(
    ("kind", "stem"),
    [("mirrors", "mirror"), ("load_backs", "load_back"), ("prefetches", "prefetch"), ("saves", "save")],
)
def test_single_copies_show_in_histograms(kind: str, stem: str) -> None:
    metrics = shown_by_a_host_tier()
    metrics.copies_ended(CopyDurations(**{kind: (0.002, 0.3)}))
    metrics.copies_ended(CopyDurations(**{kind: (0.3,)}))
    name = f"radixgate_{stem}_seconds"
    assert value(metrics, f"{name}_count") == 3
    assert value(metrics, f"{name}_sum") == pytest.approx(0.602)
    assert value(metrics, f"{name}_bucket", le="0.0025") == 1
    others = {"mirror", "load_back", "prefetch", "save"} - {stem}
    assert [value(metrics, f"radixgate_{other}_seconds_count") for other in others] == [0, 0, 0]


def test_the_speed_of_copies_is_bytes_by_seconds() -> None:
    metrics = shown_by_a_host_tier()
    metrics.tiers_changed(stats(mirrored_tokens=100))
    metrics.copies_ended(CopyDurations(mirrors=(0.5,)))
    moved, seconds = (value(metrics, f"radixgate_{name}") for name in ("mirrored_bytes_total", "mirror_seconds_sum"))
    assert moved is not None
    assert seconds is not None
    assert moved / seconds == 100 * BYTES_PER_TOKEN / 0.5
