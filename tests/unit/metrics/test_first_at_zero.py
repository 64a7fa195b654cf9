"""Rates over what Prometheus scraped have everything in them that was counted, also before a series was first seen."""

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from metrics.exposition import MetricsServer
from metrics.first_at_zero import FirstAtZero

BY_PROMETHEUS = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}


class Counted:
    """A counter, a histogram and a gauge by tenant."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tokens = Counter("tokens", "…", ["tenant"], registry=self.registry)
        self.waits = Histogram("waits", "…", ["tenant"], buckets=(1.0,), registry=self.registry)
        self.running = Gauge("running", "…", ["tenant"], registry=self.registry)

    def work(self, tenant: str, tokens: int = 5) -> None:
        self.tokens.labels(tenant).inc(tokens)
        self.waits.labels(tenant).observe(0.5)
        self.running.labels(tenant).set(3)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def tokens(shown: FirstAtZero, scraper: str = "a") -> dict[str, float]:
    return values(shown, "tokens_total", scraper)


def values(shown: FirstAtZero, name: str, scraper: str = "a") -> dict[str, float]:
    samples = [sample for metric in shown.of(scraper).collect() for sample in metric.samples]
    return {sample.labels["tenant"]: sample.value for sample in samples if sample.name == name}


def test_a_series_is_seen_at_zero_and_then_as_it_is(counted: Counted) -> None:
    shown = FirstAtZero(counted.registry)
    counted.work("acme")
    assert tokens(shown) == {"acme": 0}
    counted.work("acme")
    counted.work("globex")
    assert tokens(shown) == {"acme": 10, "globex": 0}
    assert tokens(shown) == {"acme": 10, "globex": 5}


@pytest.mark.parametrize("part", ["waits_count", "waits_sum", "waits_bucket"])
def test_histograms_begin_at_zero_in_all_their_parts(counted: Counted, part: str) -> None:
    shown = FirstAtZero(counted.registry)
    counted.work("acme")
    assert values(shown, part) == {"acme": 0}
    assert values(shown, part)["acme"] > 0


def test_gauges_are_as_they_are(counted: Counted) -> None:
    counted.work("acme")
    assert values(FirstAtZero(counted.registry), "running") == {"acme": 3}


def test_a_second_scraper_is_shown_no_reset_that_never_was(counted: Counted) -> None:
    shown = FirstAtZero(counted.registry)
    counted.work("acme")
    assert tokens(shown, "a") == {"acme": 0}
    assert tokens(shown, "b") == {"acme": 5}
    counted.work("globex")
    assert tokens(shown, "b") == {"acme": 5, "globex": 0}
    assert tokens(shown, "a") == {"acme": 5, "globex": 0}


def test_a_scraper_that_was_forgotten_is_shown_no_reset_either(counted: Counted) -> None:
    shown = FirstAtZero(counted.registry, max_scrapers=2)
    counted.work("acme")
    for scraper in "abc":
        tokens(shown, scraper)
    assert tokens(shown, "a") == {"acme": 5}


def test_a_series_that_went_and_came_again_begins_anew(counted: Counted) -> None:
    shown = FirstAtZero(counted.registry)
    counted.work("acme")
    for _ in range(2):
        tokens(shown)
    counted.tokens.remove("acme")
    assert tokens(shown) == {}
    counted.work("acme", 7)
    assert [tokens(shown), tokens(shown)] == [{"acme": 0}, {"acme": 7}]


@pytest.fixture
def server(counted: Counted) -> Iterator[MetricsServer]:
    with MetricsServer.start(counted.registry, "127.0.0.1:0") as server:
        yield server


def scraped(server: MetricsServer, headers: dict[str, str], query: str = "") -> float:
    request = urllib.request.Request(server.url + query, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        families = text_string_to_metric_families(response.read().decode())
    return next(sample.value for family in families for sample in family.samples if sample.name == "tokens_total")


def test_whoever_only_looks_sees_what_was_counted_and_changes_nothing(counted: Counted, server: MetricsServer) -> None:
    counted.work("acme")
    assert [scraped(server, {}) for _ in range(2)] == [5, 5]
    assert [scraped(server, BY_PROMETHEUS) for _ in range(2)] == [0, 5]
    assert scraped(server, {}) == 5


def test_who_asks_for_some_names_gets_them_as_they_are(counted: Counted, server: MetricsServer) -> None:
    counted.work("acme")
    assert scraped(server, BY_PROMETHEUS, "?name[]=tokens_total") == 5
