import socket
import threading
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from metrics.exposition import MetricsServer


def registry_with_a_gauge() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("served", "Served", registry=registry).set(3)
    return registry


def test_a_scrape_returns_the_registry_in_prometheus_text_format() -> None:
    with MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0") as server:
        with urlopen(server.url, timeout=5) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
    assert [(s.name, s.value) for f in families for s in f.samples] == [("served", 3.0)]


def test_after_stop_nothing_listens_and_no_thread_is_left() -> None:
    before = threading.active_count()
    server = MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0")
    server.stop()
    server.stop()
    assert threading.active_count() == before
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", server.port))


def test_a_taken_address_is_named() -> None:
    with MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0") as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(OSError, match=f"cannot serve metrics on {address}"):
            MetricsServer.start(registry_with_a_gauge(), address)


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    try:
        server = MetricsServer.start(registry_with_a_gauge(), "[::1]:0")
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    with server:
        assert server.url == f"http://[::1]:{server.port}/metrics"
        with urlopen(server.url, timeout=5) as response:
            assert response.status == 200
