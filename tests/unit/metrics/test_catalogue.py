from collections.abc import Callable
from itertools import chain

import pytest
from prometheus_client import CollectorRegistry, Metric

from metrics.catalogue import Described, by_series, catalogue
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics


def named(name: str) -> Described:
    return next(family for family in catalogue() if family.name == name)


def in_queries(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def shown(registry: CollectorRegistry) -> dict[str, Metric]:
    return {in_queries(family): family for family in registry.collect()}


@pytest.mark.parametrize("make", [lambda: WorkerMetrics("w0"), GatewayMetrics])
def test_what_is_always_there_is_what_a_process_shows_at_its_start(
    make: Callable[[], WorkerMetrics | GatewayMetrics],
) -> None:
    metrics = make()
    described = {family.name: family for family in metrics.described}
    families = shown(metrics.registry)
    assert set(families) == set(described)
    for name, family in families.items():
        assert (described[name].kind, described[name].help) == (family.type, family.documentation)


def test_every_family_is_described_by_name_kind_and_labels() -> None:
    slots = named("radixgate_slots")
    assert (slots.kind, slots.labels, slots.process) == ("gauge", ("worker", "tier", "state"), "worker")
    requests = named("radixgate_gateway_requests_total")
    assert (requests.kind, requests.labels, requests.process) == ("counter", ("method", "code", "tenant"), "gateway")


def test_a_histogram_has_three_series_of_which_buckets_have_a_bound() -> None:
    steps = named("radixgate_step_seconds")
    assert steps.series == tuple(f"radixgate_step_seconds_{ending}" for ending in ("bucket", "sum", "count"))
    assert steps.labels_of("radixgate_step_seconds_bucket") == ("worker", "le")
    assert steps.labels_of("radixgate_step_seconds_count") == ("worker",)
    assert steps.samples == len(steps.buckets) + 3
    with pytest.raises(ValueError, match="radixgate_step_seconds is no series of radixgate_step_seconds"):
        steps.labels_of("radixgate_step_seconds")


def test_series_lead_back_to_their_family() -> None:
    assert by_series()["radixgate_mirror_seconds_sum"].name == "radixgate_mirror_seconds"
    assert by_series()["radixgate_storage_pages"].when == "with storage"


def test_samples_have_the_labels_that_the_catalogue_says() -> None:
    worker, gateway = WorkerMetrics("w0"), GatewayMetrics()
    worker.finished("a", "poet", "stop", 5, 0.2)
    worker.stepped(3, 1, 0.01)
    gateway.rpc_finished("InferenceService/Generate", "OK", "a", 0.5)
    gateway.stream_opened("a")
    known = by_series()
    samples = [
        sample for family in chain(worker.registry.collect(), gateway.registry.collect()) for sample in family.samples
    ]
    assert len(samples) > 50
    for sample in samples:
        assert set(sample.labels) == set(known[sample.name].labels_of(sample.name)), sample.name


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("radixgate_step_seconds", "seconds"),
        ("radixgate_mirrored_bytes_total", "bytes"),
        ("radixgate_kv_bytes_per_token", "bytes per token"),
        ("radixgate_cache_hit_rate", "ratio, 0 to 1"),
        ("radixgate_gateway_certificate_expiry_timestamp_seconds", "seconds since 1970"),
        ("radixgate_gateway_quota_store_current", ""),
    ],
)
def test_a_name_says_its_unit(name: str, unit: str) -> None:
    assert named(name).unit == unit


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in catalogue():
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not family.name.endswith(("_bucket", "_sum", "_count")), family.name
        assert list(family.buckets) == sorted(set(family.buckets)), family.name
        if not family.name.startswith("process_"):
            assert ("worker" in family.labels[:1]) == (family.process == "worker") or family.process == "gateway"
            assert family.help[0].isupper() or family.help[0].isdigit(), family.name
