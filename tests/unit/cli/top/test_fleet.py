from dataclasses import replace
from pathlib import Path

import pytest

from cli.top import names
from cli.top.fleet import Fleet
from cli.top.rows import View
from cli.top.samples import Samples
from cli.top.sources import Look, Poll
from metrics.catalogue import by_series
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics
from tests.unit.cli.top.fleet_world import STATS, a_gateway, a_worker, pass_request, serve_request, shown


class World:
    """Metrics of the product, looked at every ten seconds."""

    def __init__(self, **endpoints: WorkerMetrics | GatewayMetrics) -> None:
        self.endpoints = endpoints
        self.fleet = Fleet("2 endpoints", 60)
        self.now = 1000.0
        self.look()

    def look(self, **errors: str) -> View:
        self.now += 10
        looks = tuple(
            Look(name, self.now, None, errors[name])
            if name in errors
            else Look(name, self.now, shown(metrics.registry))
            for name, metrics in self.endpoints.items()
        )
        self.fleet.take(Poll(self.now, looks))
        return self.fleet.view()


def test_every_metric_that_is_looked_at_is_one_that_the_product_has() -> None:
    assert set(by_series()) >= names.SERIES


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (names.CACHED, "tier"), (names.PROMPT, "adapter"), (names.SLOTS, "state"), (names.WORKER_INFO, "model"),
        (names.GATEWAY_CACHED, "tier"), (names.REQUESTS, "code"), (names.DECISIONS, "outcome"), (names.EVICTED, "tier"),
        (names.CONNECTED, "worker"), (names.RUNNING, "worker"), (f"{names.QUEUE_WAIT}_bucket", "tenant"),
        (f"{names.GATEWAY_TTFT}_bucket", "tenant"), (f"{names.GATEWAY_TTFT}_bucket", "le"),
    ],
)  # fmt: skip
def test_every_label_that_is_looked_at_is_there(name: str, label: str) -> None:
    assert label in by_series()[name].labels_of(name)


def test_a_worker_shows_rates_hits_by_tier_and_slots() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    serve_request(metrics, "a", 100, 21, device=40, host=20, storage=10)
    serve_request(metrics, "a", 100, 1)
    metrics.tiers_changed(replace(STATS, host_slots=2000, host_free_slots=500, host_cached_slots=1400, settled_slots=9))
    [row] = world.look().workers
    assert (row.worker, row.up, row.model, row.version) == ("worker-0", True, "smollm2-135m-instruct", "0.1.0")
    assert (row.running, row.waiting, row.adapters) == (2, 1, 1)
    assert row.prompt_rate == 20
    assert row.output_rate == pytest.approx(2.2)
    assert row.hits is not None
    assert (row.hits.device, row.hits.host, row.hits.storage, row.hits.rate) == (40, 20, 10, 0.35)
    assert row.device is not None
    assert (row.device.free, row.device.evictable, row.device.in_use) == (250, 450, 300)
    assert row.host is not None
    assert (row.host.total, row.host.in_use, row.settled) == (2000, 100, 9)
    assert row.step_s == pytest.approx(0.04)


def test_without_traffic_there_is_no_hit_rate_and_none_of_nought() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    view = world.look()
    assert view.workers[0].hits is None
    assert view.totals.hits is None
    assert view.history[-1].hit_rate is None
    assert view.history[-1].prompt_rate == 0
    assert view.tenants == ()


def test_all_misses_are_a_hit_rate_of_nought() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    serve_request(metrics, "a", 100, 1)
    view = world.look()
    assert view.totals.hits is not None
    assert view.totals.hits.rate == 0


def test_a_gateway_shows_requests_latency_refusals_and_redis() -> None:
    metrics = a_gateway()
    world = World(g=metrics)
    for _ in range(8):
        pass_request(metrics, "a", 10, 5, device=5)
    metrics.quota_decided("a", "refused", "requests", "shared")
    metrics.rpc_finished("Generate", "INTERNAL", "a", 1.0)
    metrics.rpc_finished("Generate", "INVALID_ARGUMENT", "a", 1.0)
    [row] = world.look().gateways
    assert (row.up, row.version, row.request_rate, row.failure_rate, row.refusal_rate) == (True, "0.1.0", 1, 0.1, 0.1)
    assert row.ttft is not None
    assert 0.25 < row.ttft.p50 < row.ttft.p95 <= 0.5
    assert (row.redis, row.shared_limits, row.workers_connected, row.workers_known) == (True, True, 1, 1)
    metrics.store_reachable(False)
    metrics.worker_lost("worker-0")
    [row] = world.look().gateways
    assert (row.redis, row.workers_connected, row.workers_known) == (False, 0, 1)


def test_a_gateway_shows_what_it_knows_of_caches_how_often_it_was_right_and_what_moved() -> None:
    metrics = a_gateway()
    metrics.index(lambda: 1234)
    world = World(g=metrics)
    world.look()
    for error in (0, 0, 0, 64):
        metrics.hit_predicted("10.0.0.1:50061", 640, 640 - error, error)
    metrics.request_moved("lost", "continued")
    metrics.breaker_changed("10.0.0.1:50061", "open")
    metrics.breaker_changed("10.0.0.2:50061", "closed")
    [row] = world.look().gateways
    assert (row.known_pages, row.right, row.workers_shunned) == (1234, 0.75, 1)
    assert row.move_rate is not None
    assert row.move_rate > 0


def test_a_gateway_that_expected_nothing_was_neither_right_nor_wrong() -> None:
    world = World(g=a_gateway())
    world.look()
    [row] = world.look().gateways
    assert (row.right, row.workers_shunned, row.move_rate) == (None, 0, 0.0)


def test_tokens_that_worker_and_gateway_both_count_count_once() -> None:
    worker, gateway = a_worker(), a_gateway()
    world = World(w=worker, g=gateway)
    serve_request(worker, "a", 100, 10, device=50)
    pass_request(gateway, "a", 100, 10, device=50)
    view = world.look()
    assert view.totals.prompt_rate == 10
    [tenant] = view.tenants
    assert (tenant.tenant, tenant.prompt_rate, tenant.output_rate) == ("a", 10, 1)
    assert tenant.hits is not None
    assert tenant.hits.rate == 0.5
    assert tenant.ttft is not None
    assert tenant.ttft.p50 > 0.25  # what the gateway saw: clients do
    assert tenant.queue is not None
    assert 0.01 < tenant.queue.p95 <= 0.025


def test_where_no_worker_is_seen_gateways_tell_of_tokens() -> None:
    gateway = a_gateway()
    world = World(g=gateway)
    pass_request(gateway, "a", 100, 10, device=50, storage=20)
    view = world.look()
    assert view.totals.hits is not None
    assert view.totals.hits.rate == 0.7
    assert view.tenants[0].output_rate == 1


def test_two_workers_add_up_and_the_busiest_tenant_comes_first() -> None:
    first, second = a_worker("w0"), a_worker("w1")
    world = World(a=first, b=second)
    serve_request(first, "calm", 100, 1, device=100)
    serve_request(first, "busy", 200, 1)
    serve_request(second, "busy", 400, 1, device=300)
    view = world.look()
    assert view.totals.prompt_rate == 70
    assert [row.tenant for row in view.tenants] == ["busy", "calm"]
    busy = view.tenants[0]
    assert busy.hits is not None
    assert busy.hits.rate == 0.5
    assert view.totals.running == 4


def test_a_worker_that_dies_keeps_its_name_and_comes_back_with_true_figures() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    serve_request(metrics, "a", 100, 1)
    world.look()
    view = world.look(w="connection refused")
    [row] = view.workers
    assert (row.worker, row.up, row.error, row.model) == (
        "worker-0",
        False,
        "connection refused",
        "smollm2-135m-instruct",
    )
    assert row.running is None
    assert view.totals.running is None
    world.endpoints["w"] = reborn = a_worker()
    serve_request(reborn, "a", 30, 1)
    view = world.look()
    assert view.workers[0].up
    assert view.history[-1].prompt_rate == 30 / 20  # since the last look that succeeded, two looks ago


def test_who_was_down_for_longer_than_the_window_has_no_rates() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    serve_request(metrics, "a", 100, 1)
    world.look()
    for _ in range(7):
        view = world.look(w="connection refused")
    assert view.tenants == ()
    assert view.totals.prompt_rate is None


def test_an_endpoint_that_never_answered_is_named_with_the_reason() -> None:
    fleet = Fleet("1 endpoint", 60)
    fleet.take(Poll(1.0, (Look("127.0.0.1:1", 1.0, None, "connection refused"),)))
    assert fleet.view().silent == (("127.0.0.1:1", "connection refused"),)


def test_adapters_have_rows_of_their_tenant_and_requests_without_one_have_none() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    serve_request(metrics, "a", 100, 11, adapter="pirate", device=80)
    serve_request(metrics, "b", 100, 1, adapter="pirate")
    serve_request(metrics, "a", 500, 1)
    rows = world.look().adapters
    assert [(row.tenant, row.adapter, row.prompt_rate) for row in rows] == [("a", "pirate", 10), ("b", "pirate", 10)]
    assert rows[0].hits is not None
    assert rows[0].hits.rate == 0.8


def test_a_poll_that_failed_leaves_what_was_seen_and_says_why() -> None:
    metrics = a_worker()
    world = World(w=metrics)
    before = world.look()
    world.fleet.take(Poll(2000.0, (), "no answer in 3 s"))
    after = world.fleet.view()
    assert after.error == "no answer in 3 s"
    assert after.workers == before.workers


def test_a_worker_without_a_host_tier_has_no_figures_of_one() -> None:
    world = World(w=a_worker(has_host=False))
    [row] = world.look().workers
    assert (row.host, row.settled, row.mirror_rate, row.lost_rate) == (None, None, None, None)


def test_no_word_of_the_packages_depends_on_a_terminal_or_a_network() -> None:
    folder = Path(names.__file__).parent
    for module in ("samples", "trail", "summing", "rows", "fleet"):
        text = (folder / f"{module}.py").read_text()
        assert not any(word in text for word in ("import rich", "from rich", "urllib", "socket"))


def test_samples_without_labels_are_summed_over_everything() -> None:
    samples = Samples.of([(names.RUNNING, {"worker": "a"}, 1.0), (names.RUNNING, {"worker": "b"}, 2.0)])
    assert samples.value(names.RUNNING) == 3
    assert samples.value(names.RUNNING, worker="b") == 2
    assert samples.value(names.WAITING) is None
