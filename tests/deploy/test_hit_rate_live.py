"""What dashboards say of the hit rate is what responses said of their tokens, under load, in a real Prometheus."""

from collections.abc import Iterator

import pytest

from cli.admin_client import admin_client
from radixgate.v1 import inference_pb2
from tests.deploy.observed import Observed
from tests.e2e.stack import Client
from tests.processes import wait_until

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.timeout(400)]

HALF_A_POINT = 0.005
# By what the names of their metrics begin with: both count the same tokens.
PROCESSES = WORKER, GATEWAY = ("radixgate", "radixgate_gateway")
TENANTS = ("demo-a", "demo-b", "limited")
ENOUGH = 60  # answers


class Window:
    """A time of traffic with quiet before and after.

    Of each process it goes from one of its scrapes to another: Prometheus guesses nothing about its edges then.
    """

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        observed.settle()
        self._before = {who: self._totals(who) for who in ("", *TENANTS)}
        began = {process: self._last_scrape(process) for process in PROCESSES}
        observed.traffic.resume()
        answered = len(observed.traffic.used) + ENOUGH
        wait_until(lambda: len(observed.traffic.used) >= answered, timeout_s=300, what=f"{ENOUGH} more answers")
        observed.settle()
        self._at = {process: self._last_scrape(process) for process in PROCESSES}
        self._milliseconds = {each: round((self._at[each] - began[each]) * 1000) + 1 for each in PROCESSES}

    def has_responses(self, tenant: str) -> bool:
        return self._totals(tenant) != self._before[tenant]

    def of_responses(self, tenant: str = "") -> float:
        """Return cached / prompt tokens of all responses in the window."""
        prompt, cached = (now - then for now, then in zip(self._totals(tenant), self._before[tenant], strict=True))
        return cached / prompt

    def shown(self, expr: str, process: str = WORKER) -> dict[tuple[str, ...], float]:
        """Return what an expression over the metrics of a process yields at the end, by the values of its labels."""
        window = f"{self._milliseconds[process]}ms"
        samples = self._observed.prometheus.query(expr.replace("WINDOW", window), self._at[process])
        return {tuple(labels[name] for name in sorted(labels)): value for labels, value in samples}

    def _totals(self, tenant: str) -> tuple[int, int]:
        return self._observed.traffic.totals(**({"tenant": tenant} if tenant else {}))

    def _last_scrape(self, process: str) -> float:
        last = self._observed.prometheus.value(f"max(timestamp({process}_prompt_tokens_total))")
        assert last is not None
        return last


@pytest.fixture(scope="module")
def window(observed: Observed) -> Iterator[Window]:
    # Every tenant has had an answer before: `rate` guesses at the beginning of a series that begins inside.
    wait_until(
        lambda: {each.tenant for each in observed.traffic.used} == set(TENANTS) and _all_kinds(observed),
        timeout_s=240,
        what="answers to all tenants, over both APIs, with an adapter",
    )
    yield Window(observed)
    observed.traffic.resume()


def _all_kinds(observed: Observed) -> bool:
    used = observed.traffic.used
    return any(each.adapter for each in used) and any(each.by_tier is None for each in used)


def hit_rate(by: str = "", process: str = WORKER) -> str:
    cached, prompt = f"{process}_cached_tokens_total", f"{process}_prompt_tokens_total"
    return f"sum {by} (rate({cached}[WINDOW])) / (sum {by} (rate({prompt}[WINDOW])) > 0)"


def test_the_hit_rate_is_that_of_the_responses_as_workers_and_as_gateways_count(window: Window) -> None:
    expected = window.of_responses()
    assert 0.1 < expected < 0.99
    assert window.shown(hit_rate()) == {(): pytest.approx(expected, abs=HALF_A_POINT)}
    gateways = window.shown(hit_rate(process=GATEWAY), GATEWAY)
    assert gateways == {(): pytest.approx(expected, abs=HALF_A_POINT)}


def test_each_tenants_hit_rate_is_that_of_its_responses(window: Window) -> None:
    """Of those that had any: the limited one may have had its share before."""
    shown = window.shown(hit_rate("by (tenant)"))
    asked = [tenant for tenant in TENANTS if window.has_responses(tenant)]
    assert len(asked) > 1
    assert shown == {(tenant,): pytest.approx(window.of_responses(tenant), abs=HALF_A_POINT) for tenant in asked}


@pytest.mark.parametrize("label", ["tenant", "adapter", "worker"])
@pytest.mark.parametrize("metric", ["radixgate_prompt_tokens_total", "radixgate_cached_tokens_total"])
def test_the_parts_sum_to_the_total(window: Window, label: str, metric: str) -> None:
    total = window.shown(f"sum (increase({metric}[WINDOW]))")[()]
    parts = window.shown(f"sum by ({label}) (increase({metric}[WINDOW]))")
    assert total > 0
    assert sum(parts.values()) == pytest.approx(total)
    assert len(parts) == {"tenant": len(TENANTS), "adapter": 2, "worker": 1}[label]


def test_the_tiers_sum_to_the_hit_rate_and_each_of_them_had_something(window: Window) -> None:
    whole = "scalar(sum (rate(radixgate_prompt_tokens_total[WINDOW])))"
    tiers = f"sum by (tier) (rate(radixgate_cached_tokens_total[WINDOW])) / {whole}"
    shown = window.shown(tiers)
    assert set(shown) == {("device",), ("host",), ("storage",)}
    assert all(value > 0 for value in shown.values())
    assert sum(shown.values()) == pytest.approx(window.of_responses(), abs=HALF_A_POINT)


def test_counters_are_exactly_the_sums_of_the_responses_since_the_start(observed: Observed, window: Window) -> None:
    prompt, cached = observed.traffic.totals()
    for process in PROCESSES:
        assert window.shown(f"sum ({process}_prompt_tokens_total)", process) == {(): prompt}
        assert window.shown(f"sum ({process}_cached_tokens_total)", process) == {(): cached}


def test_the_recorded_hit_rates_are_those_of_the_counters_over_five_minutes(window: Window) -> None:
    """Whatever the five minutes hold: both look at the same ones, up to an evaluation's second."""
    for recorded, by in (
        ("namespace:radixgate_cache_hit_ratio:rate5m", ""),
        ("namespace_tenant:radixgate_cache_hit_ratio:rate5m", "by (tenant)"),
        ("namespace_tenant_adapter:radixgate_cache_hit_ratio:rate5m", "by (tenant, adapter)"),
        ("namespace_worker:radixgate_cache_hit_ratio:rate5m", "by (worker)"),
    ):
        counted = window.shown(hit_rate(by).replace("WINDOW", "5m"))
        assert window.shown(f"sum {by} ({recorded})") == {
            who: pytest.approx(value, abs=2 * HALF_A_POINT) for who, value in counted.items()
        }
    tiers = window.shown("sum (namespace_tier:radixgate_cache_hit_ratio:rate5m)")
    whole = window.shown("sum (namespace:radixgate_cache_hit_ratio:rate5m)")
    assert tiers == {(): pytest.approx(whole[()], abs=HALF_A_POINT)}


def test_all_rules_can_be_evaluated_on_what_the_product_shows(observed: Observed) -> None:
    groups = observed.prometheus.rule_groups()
    assert groups
    rules = [rule for group in groups for rule in group["rules"]]
    unwell = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
    assert unwell == []


def test_the_first_requests_of_a_new_tenant_are_in_the_differences_that_rates_are_made_of(observed: Observed) -> None:
    with admin_client(observed.stack.grpc, observed.stack.admin_token) as admin:
        admin.ensure_tenant("late")
        client = Client(observed.stack.grpc, admin.create_key("late")[1])
    prompt = inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenPrompt(token_ids=list(range(100, 164))),
        sampling=inference_pb2.SamplingParams(max_new_tokens=1),
    )
    answers = [client.generate(prompt) for _ in range(2)]
    expected = {
        "prompt": sum(answer.usage.prompt_tokens for answer in answers),
        "cached": sum(answer.cached for answer in answers),
    }
    assert expected["prompt"] == 128

    def grown(what: str) -> float | None:
        series = f'radixgate_{what}_tokens_total{{tenant="late"}}[5m]'
        return observed.prometheus.value(f"sum(max_over_time({series}) - min_over_time({series}))")

    wait_until(lambda: {what: grown(what) for what in expected} == expected, timeout_s=60, what="all of it in a rate")
