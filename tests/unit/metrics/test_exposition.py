import socket
import threading
from contextlib import ExitStack
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from metrics.exposition import MetricsServer
from tests.probes import probe


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


def test_checks_answer_beside_the_metrics_and_nothing_else_does() -> None:
    reasons: dict[str, str | None] = {"/livez": None, "/readyz": "no worker is connected"}
    checks = {path: lambda path=path: reasons[path] for path in reasons}
    with MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0", checks) as server:
        assert probe(server.url, "/livez") == (200, "ok\n")
        assert probe(server.url, "/readyz") == (503, "no worker is connected\n")
        assert probe(server.url, "/livez?verbose=1") == (200, "ok\n")
        for path in ("/", "/metricsz", "/livez/more", "/favicon.ico"):
            assert probe(server.url, path) == (404, "there is /metrics, /livez, /readyz\n")
        reasons["/readyz"] = None
        assert probe(server.url, "/readyz") == (200, "ok\n")


def test_a_check_that_fails_was_not_passed() -> None:
    def broken() -> str | None:
        raise ZeroDivisionError("a secret")

    with MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0", {"/livez": broken}) as server:
        assert probe(server.url, "/livez") == (503, "the check failed: ZeroDivisionError\n")


def test_scrapers_that_say_nothing_and_take_nothing_keep_nobody_waiting() -> None:
    registry = CollectorRegistry()
    wide = Gauge("wide", "Wide", ["label"], registry=registry)
    for number in range(20_000):
        wide.labels(f"{number:0200}").set(number)  # more than sockets buffer
    with MetricsServer.start(registry, "127.0.0.1:0", {"/livez": lambda: None}) as server, ExitStack() as stack:
        for number in range(40):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            if number < 4:
                slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert probe(server.url, "/livez") == (200, "ok\n")
