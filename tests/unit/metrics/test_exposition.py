import socket
import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from metrics.exposition import MAX_CONNECTIONS, MetricsServer
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


def test_probes_and_scrapes_are_gets_or_heads_and_heads_bring_no_body() -> None:
    with MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0", {"/livez": lambda: None}) as server:
        for path in ("/metrics", "/livez"):
            assert said(server, f"POST {path}").startswith(b"HTTP/1.0 405 ")
            status_line, _, rest = said(server, f"HEAD {path}").partition(b"\r\n")
            assert status_line == b"HTTP/1.0 200 OK"
            assert rest.endswith(b"\r\n\r\n")


def said(server: MetricsServer, line: str) -> bytes:
    with socket.create_connection((server.host, server.port), timeout=5) as client, client.makefile("rb") as answer:
        client.sendall(f"{line} HTTP/1.0\r\n\r\n".encode())
        return answer.read()


def test_starting_asks_for_no_name_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str = "") -> str:
        raise AssertionError("DNS may not answer for half a minute")

    monkeypatch.setattr(socket, "getfqdn", asked)
    with MetricsServer.start(registry_with_a_gauge(), "0.0.0.0:0", {"/livez": lambda: None}) as server:
        assert probe(f"http://127.0.0.1:{server.port}/metrics", "/livez") == (200, "ok\n")


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


def test_connections_are_bounded_and_the_oldest_give_way() -> None:
    before = threading.active_count()
    with (
        MetricsServer.start(registry_with_a_gauge(), "127.0.0.1:0", {"/livez": lambda: None}) as server,
        ExitStack() as stack,
    ):
        connect = partial(socket.create_connection, ("127.0.0.1", server.port), timeout=5)
        idle = [stack.enter_context(connect()) for _ in range(MAX_CONNECTIONS + 40)]
        assert probe(server.url, "/livez") == (200, "ok\n")
        assert [client.recv(1) for client in idle[:41]] == [b""] * 41
        assert threading.active_count() - before <= MAX_CONNECTIONS + 2
        idle[-1].sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.0 200 ")


def test_one_scrape_at_a_time_is_written_and_checks_do_not_wait_for_it() -> None:
    begun, may_go_on, at_once = threading.Event(), threading.Event(), Counter[str]()

    def look() -> float:
        at_once["now"] += 1
        at_once["most"] = max(at_once["most"], at_once["now"])
        begun.set()
        may_go_on.wait(20)
        at_once["now"] -= 1
        return 1.0

    registry = CollectorRegistry()
    Gauge("slow", "Slow", registry=registry).set_function(look)
    with MetricsServer.start(registry, "127.0.0.1:0", {"/livez": lambda: None}) as server:
        scrapers = [threading.Thread(target=probe, args=(server.url, "/metrics")) for _ in range(4)]
        for scraper in scrapers:
            scraper.start()
        assert begun.wait(20)
        assert probe(server.url, "/livez") == (200, "ok\n")
        may_go_on.set()
        for scraper in scrapers:
            scraper.join(20)
    assert at_once["most"] == 1
