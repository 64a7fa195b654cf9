import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs

import pytest
from prometheus_client import CollectorRegistry

from cli.top.fleet import Fleet
from cli.top.names import PROMPT, RUNNING, STARTED
from cli.top.prometheus import Prometheus
from cli.top.sources import Endpoints, endpoint_name, is_http, metrics_urls
from tests.processes import wait_until
from tests.unit.cli.top.fleet_world import a_gateway, a_worker, pass_request, serve_request, served


@contextmanager
def answering(answer: bytes, *, status: int = 200) -> Iterator[str]:
    """The URL of something that answers everything with the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def error_of(url: str, timeout_s: float = 5.0) -> str:
    [look] = Endpoints([url], timeout_s=timeout_s).poll().looks
    assert look.samples is None
    return look.error


def test_real_endpoints_of_worker_and_gateway_make_a_fleet() -> None:
    worker, gateway = a_worker(), a_gateway()
    with served(worker.registry) as worker_url, served(gateway.registry) as gateway_url:
        source = Endpoints([worker_url, gateway_url, worker_url], timeout_s=5.0)
        fleet = Fleet(source.title, 60)
        fleet.take(source.poll())
        serve_request(worker, "a", 100, 5, device=60, host=10)
        pass_request(gateway, "a", 100, 5, device=60, host=10)
        fleet.take(source.poll())
        view = fleet.view()
    assert source.title == "2 endpoints"
    assert [row.worker for row in view.workers] == ["worker-0"]
    assert view.gateways[0].up
    assert view.tenants[0].hits is not None
    assert view.tenants[0].hits.rate == 0.7
    source.close()


def test_an_endpoint_that_dies_is_told_and_found_again_when_it_is_back() -> None:
    metrics = a_worker()
    with served(metrics.registry) as url:
        source = Endpoints([url], timeout_s=5.0)
        assert source.poll().looks[0].samples is not None
    assert source.poll().looks[0].error == "connection refused"
    with served(metrics.registry, endpoint_name(url)):
        assert source.poll().looks[0].samples is not None


def test_what_answers_something_else_is_told_in_words() -> None:
    with answering(b"<html>hello</html>") as url:
        assert "no metrics" in error_of(url)
    with answering(b"", status=503) as url:
        assert error_of(url) == "HTTP 503"
    with answering(b"up 1\n") as url:
        assert error_of(url) == "shows no metrics of RadixGate"
    with served(CollectorRegistry()) as url:
        assert error_of(url) == "shows no metrics of RadixGate"
    with answering(b"\xff\xfe") as url:
        assert error_of(url)


def test_who_takes_a_connection_and_says_nothing_costs_the_timeout_and_no_other_its_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, served(a_worker().registry) as url:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        looks = Endpoints([hanging, url], timeout_s=0.5).poll().looks
    assert (looks[0].samples, looks[0].error) == (None, "no answer in 0.5 s")
    assert looks[1].samples is not None


def test_who_answers_drop_by_drop_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = slow.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not ended.wait(0.05):
                    try:
                        connection.sendall(b"# drop\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        error = error_of(f"http://127.0.0.1:{slow.getsockname()[1]}/metrics", 0.5)
        ended.set()
        thread.join()
    assert error == "no whole answer in 0.5 s"


@pytest.mark.parametrize(
    ("content", "urls"),
    [
        ({"metrics": ["http://a:1/metrics", "http://b:2/metrics"]}, ["http://a:1/metrics", "http://b:2/metrics"]),
        ({"metrics": "http://a:1/metrics"}, ["http://a:1/metrics"]),
        ({"metrics": None}, []),
        ({"metrics": ["file:///etc/passwd", 7]}, []),
        ({}, []),
    ],
)
def test_ready_files_name_endpoints(content: dict[str, object], urls: list[str]) -> None:
    assert metrics_urls(content) == urls


def test_urls_are_of_http_and_have_a_host() -> None:
    assert is_http("http://localhost:9464/metrics")
    assert not is_http("ftp://host/")
    assert not is_http("http:///metrics")
    assert not is_http("http://host:port/")
    assert endpoint_name("http://user:secret@host:1/metrics") == "host:1"


class Answers(BaseHTTPRequestHandler):
    """The API of a Prometheus that has scraped a worker, another program, and a worker that is down."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query = form["query"][0]
        self.asked.append((query, self.headers.get("Authorization")))
        at = float(form["time"][0])
        who = {"job": "w", "instance": "10.0.0.1:9101", "pod": "worker-a"}
        result: list[tuple[dict[str, str], float]]
        if query == "up":
            result = [(who, 1), ({"job": "w", "instance": "10.0.0.2:9101"}, 0)]
        elif query == "timestamp(up)":
            result = [(who, at - 3), ({"job": "w", "instance": "10.0.0.2:9101"}, at - 1)]
        else:
            result = [
                ({"__name__": PROMPT, "tenant": "a", "worker": "w0", **who}, at),  # one token a second
                ({"__name__": RUNNING, "worker": "w0", **who}, 2),
                ({"__name__": STARTED, "job": "other", "instance": "x:1"}, 1),
                ({"__name__": RUNNING, "worker": "w1", "job": "w", "instance": "10.0.0.2:9101"}, 1),
            ]
        data = {"resultType": "vector", "result": [{"metric": m, "value": [at, str(v)]} for m, v in result]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "success", "data": data}).encode())

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def prometheus_url() -> Iterator[str]:
    Answers.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_prometheus_tells_of_all_endpoints_at_once_with_rates_from_the_first_look(prometheus_url: str) -> None:
    source = Prometheus(prometheus_url, timeout_s=5.0, match='namespace="prod"', token="secret")
    fleet = Fleet(source.title, 60)
    polls = source.begin(60)
    for poll in polls:
        fleet.take(poll)
    view = fleet.view()
    assert [(row.worker, row.endpoint, row.up) for row in view.workers] == [("w0", "worker-a", True)]
    assert view.workers[0].prompt_rate == pytest.approx(1.0)
    assert view.silent == (("10.0.0.2:9101", "the scrape fails"),)
    assert polls[-1].looks[0].at == pytest.approx(polls[-1].at - 3, abs=0.01)  # the time of the scrape
    assert any('namespace="prod"}' in query and PROMPT in query for query, _ in Answers.asked)
    assert {token for _, token in Answers.asked} == {"Bearer secret"}


def test_a_prometheus_that_is_none_or_away_says_so() -> None:
    with answering(b"{}") as url:
        assert Prometheus(url, timeout_s=5.0).poll().error == "HTTP 501"
    assert Prometheus("http://127.0.0.1:1", timeout_s=5.0).poll().error == "connection refused"


def test_scrapes_in_parallel_take_no_thread_along() -> None:
    with served(a_worker().registry) as url:
        source = Endpoints([url], timeout_s=5.0)
        source.poll()
        source.close()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("scrape")])
