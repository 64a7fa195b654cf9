"""However many tenants and adapters there are, a process shows a bounded number of series, and rates stay exact."""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from gateway.quota.bounds import LINE, PLACES, REQUESTS, TOKENS
from metrics.bounds import OPERATOR_METHODS, TENANT_METHODS, Bounds
from metrics.catalogue import catalogue
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics
from radixgate.v1 import admin_pb2, inference_pb2
from tests.unit.metrics.test_worker_metrics import Admission, Clock, Hit
from worker.engine.ports import FinishReason
from worker.errors import FailureCode

BOUNDS = Bounds()
OUTCOMES = [each.value for each in (*FinishReason, *FailureCode)]
CODES = [code.name for code in grpc.StatusCode]
METHODS = [f"InferenceService/{number}" for number in range(TENANT_METHODS)]
LIMITS = ["", REQUESTS, TOKENS, PLACES, LINE]


def num_samples(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def cap(process: str, bounds: Bounds = BOUNDS) -> int:
    return bounds.most_samples(family for family in catalogue() if family.process == process)


def visit(metrics: WorkerMetrics, tenant: str, adapter: str, number: int) -> None:
    prompt = 4 + number % 997
    metrics.admitted(tenant, adapter, Admission(prompt, Hit(number % 3, number % 2)), queue_wait_s=0.01)
    metrics.continued(tenant, adapter, Admission(prompt, Hit(number % 3)))
    metrics.first_token(tenant, adapter, 0.1)
    metrics.paused(tenant, adapter)
    metrics.finished(tenant, adapter, OUTCOMES[number % len(OUTCOMES)], 3, 0.5)


def call(metrics: GatewayMetrics, tenant: str, adapter: str, number: int) -> None:
    model = f"model-{number % BOUNDS.models}"
    metrics.rpc_finished(METHODS[number % 8], CODES[number % len(CODES)], tenant, 0.1)
    metrics.quota_decided(tenant, ("admitted", "refused", "queued")[number % 3], LIMITS[number % 5], "shared")
    metrics.admitted(tenant, model, adapter, 1 + number % 997, 1, 0, 0)
    metrics.public_prefix_met(tenant, model, adapter, 1, 1)
    metrics.first_message(tenant, model, 0.1)
    metrics.next_message(tenant, model, 0.1)
    metrics.stream_finished(tenant, model, adapter, 5, 0.5)
    if number % 50 == 0:
        metrics.stream_opened(tenant)


@pytest.mark.parametrize(
    ("process", "make", "work"), [("worker", lambda clock: WorkerMetrics("w0", clock=clock), visit),
                                  ("gateway", lambda clock: GatewayMetrics(clock=clock), call)],
)  # fmt: skip
def test_ten_thousand_tenants_with_adapters_stay_below_the_cap(
    process: str,
    make: Callable[[Clock], Any],
    work: Callable[[Any, str, str, int], None],
) -> None:
    clock, chooser = Clock(), random.Random(1)
    metrics = make(clock)
    most = 0
    for number in range(12_500):
        clock.now += 0.1
        tenant = f"busy-{chooser.randrange(80)}" if number % 5 == 0 else f"tenant-{number}"
        work(metrics, tenant, f"adapter-{chooser.randrange(20)}" if number % 3 else "", number)
        if number % 2_500 == 0:
            most = max(most, num_samples(metrics.registry))
    most = max(most, num_samples(metrics.registry))
    assert 1_000 < most < cap(process)
    tenants = {s.labels["tenant"] for f in metrics.registry.collect() for s in f.samples if "tenant" in s.labels}
    assert 50 < len(tenants) <= BOUNDS.tenant_values


def test_the_cap_is_the_sum_of_what_each_family_can_show() -> None:
    one = next(family for family in catalogue() if family.name == "radixgate_queue_wait_seconds")
    assert BOUNDS.tenant_values == 50 + 12 + 2
    assert BOUNDS.combinations(one) == BOUNDS.tenant_values
    assert BOUNDS.most_samples([one]) == BOUNDS.tenant_values * (len(one.buckets) + 3)
    assert cap("worker", Bounds(tenants=10)) < cap("worker")
    assert cap("gateway", Bounds(workers=1)) < cap("gateway")


def test_no_label_has_more_values_than_its_bound() -> None:
    assert len(OUTCOMES) <= 9
    assert len(CODES) <= 17
    admin = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    inference = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods
    assert len(admin) <= OPERATOR_METHODS
    assert len(inference) + len(_found(r'label="(\w+)"', "gateway/http")) <= TENANT_METHODS
    reasons = _found(r'"((?:token|certificate)_\w+)"', "gateway/identity")
    assert 8 < len(reasons) + len(["missing", "malformed", "unknown", "wrong_secret", "revoked", "expired"]) < 32


def _found(pattern: str, folder: str) -> set[str]:
    root = Path(__file__).parents[3]
    return {word for file in (root / folder).rglob("*.py") for word in re.findall(pattern, file.read_text())}


class Scraper:
    """Adds up growth as Prometheus does: of a series by its own samples, and none in one that it sees first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[tuple[str, ...], float] = {}
        self.growth: dict[str, float] = defaultdict(float)  # by tenant
        self.before_first_seen = 0.0

    def scrape(self, registry: CollectorRegistry) -> None:
        seen = {
            tuple(sample.labels.values()): (sample.labels["tenant"], sample.value)
            for family in registry.collect()
            for sample in family.samples
            if sample.name == self._name
        }
        for labels, (tenant, value) in seen.items():
            if labels in self._last:
                self.growth[tenant] += value - self._last[labels] if value >= self._last[labels] else value
            else:
                self.before_first_seen += value
        self._last = {labels: value for labels, (_, value) in seen.items()}


def churn(rounds: int, seed: int = 2) -> Iterable[tuple[str, int]]:
    """Work of tenants of which others are the busy ones every now and then."""
    chooser = random.Random(seed)
    for number in range(rounds):
        busiest = number // 160
        yield f"tenant-{busiest + int(chooser.expovariate(0.4))}", 1 + chooser.randrange(100)


def test_rates_by_tenant_add_up_to_the_total_while_labels_change_hands() -> None:
    clock = Clock()
    metrics = WorkerMetrics("w0", max_tenants=4, clock=clock)
    prompts, cached = Scraper("radixgate_prompt_tokens_total"), Scraper("radixgate_cached_tokens_total")
    prompt_total = cached_total = 0
    for number, (tenant, tokens) in enumerate(churn(8_000)):
        clock.now += 0.25
        metrics.admitted(tenant, "", Admission(2 * tokens, Hit(device=tokens)), queue_wait_s=0.0)
        prompt_total += 2 * tokens
        cached_total += tokens
        if number % 60 == 0:  # every 15 seconds
            prompts.scrape(metrics.registry)
            cached.scrape(metrics.registry)
    prompts.scrape(metrics.registry)
    cached.scrape(metrics.registry)
    assert len(prompts.growth) > 8  # labels did change hands
    # Nothing is lost or counted twice, but what a series has counted before it was first scraped.
    assert sum(prompts.growth.values()) + prompts.before_first_seen == prompt_total
    assert sum(cached.growth.values()) + cached.before_first_seen == cached_total
    assert prompts.before_first_seen < 0.05 * prompt_total
    # What is lost that way is lost in both: ratios are as they were.
    for tenant, growth in prompts.growth.items():
        assert growth == 2 * cached.growth[tenant]
