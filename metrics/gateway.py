"""What a gateway shows: requests, identity, streams and workers. Fits the gateway's observer by shape.

Token counts are those that responses report. They carry `gateway` in their names: workers count the same tokens, and
one name on both sides would count them twice.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from metrics.described import Described
from metrics.registry import (
    END_TO_END_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    INTER_TOKEN_BUCKETS,
    QUEUE_WAIT_BUCKETS,
    MetricFamilies,
)
from metrics.routing import RoutingMetrics
from metrics.work_labels import WorkLabels

WITH_REGISTRY: Final = "with a registry"


class GatewayMetrics:
    """Counts what the gateway tells. Called from the event loop's thread only; scraped from any."""

    def __init__(
        self, *, max_tenants: int = 50, max_adapters: int = 200, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._families = MetricFamilies("gateway")
        self._labels = WorkLabels(max_tenants, max_adapters, self._families.forget, clock)
        self._open_streams = OpenStreams(self._labels.of_tenant)
        self.registry = self._families.registry
        self._families.collector(self._open_streams, ("tenant",))
        self._make_request_metrics()
        self._make_token_metrics()
        self._make_worker_metrics()
        self._make_failover_metrics()
        self._make_trust_metrics()
        self._make_quota_metrics()
        self._make_control_metrics()
        self._families.process_metrics()

    @property
    def described(self) -> tuple[Described, ...]:
        """Every family that this gateway shows or, by what has been there so far, can show."""
        return self._families.described

    def _make_request_metrics(self) -> None:
        make = self._families
        self._requests = make.counter(
            "radixgate_gateway_requests_total", "RPCs that ended, by gRPC status", ("method", "code", "tenant")
        )
        self._request_seconds = make.histogram(
            "radixgate_gateway_request_seconds", "From arrival to the end of an RPC", END_TO_END_BUCKETS, ("method",)
        )
        self._auth_failures = make.counter(
            "radixgate_gateway_auth_failures_total", "Credentials refused, by reason", ("reason",)
        )

    def _make_token_metrics(self) -> None:
        make, who = self._families, ("tenant", "model", "adapter")
        self._prompt_tokens = make.counter(
            "radixgate_gateway_prompt_tokens_total", "Prompt tokens of requests that a worker admitted", who
        )
        self._cached_tokens = make.counter(
            "radixgate_gateway_cached_tokens_total", "Prompt tokens found in a worker's cache", (*who, "tier")
        )
        self._public_prefix_tokens = make.counter(
            "radixgate_gateway_public_prefix_tokens_total",
            "Those of the prompt tokens that belong to a public prefix",
            who,
        )
        self._cached_public_tokens = make.counter(
            "radixgate_gateway_cached_public_tokens_total",
            "Those of the cached tokens that belong to a public prefix",
            who,
        )
        self._completion_tokens = make.counter(
            "radixgate_gateway_completion_tokens_total", "Tokens of streams that ended regularly", who
        )
        self._first_message = make.histogram(
            "radixgate_gateway_time_to_first_token_seconds",
            "From arrival to the first tokens sent to the client",
            FIRST_TOKEN_BUCKETS,
            ("tenant", "model"),
        )
        self._next_message = make.histogram(
            "radixgate_gateway_inter_message_seconds",
            "Between two messages of a stream",
            INTER_TOKEN_BUCKETS,
            ("model",),
        )
        self._stream_seconds = make.histogram(
            "radixgate_gateway_stream_seconds",
            "From arrival to the regular end of a stream",
            END_TO_END_BUCKETS,
            ("tenant", "model"),
        )

    def _make_worker_metrics(self) -> None:
        make = self._families
        self._connected = make.gauge(
            "radixgate_gateway_worker_connected", "1 while the stream to a worker is up, else 0", ("worker",)
        )
        self._losses = make.counter(
            "radixgate_gateway_worker_losses_total", "Streams to a worker that went down", ("worker",)
        )
        self._routing = RoutingMetrics(make)
        self._in_flight = InFlight()
        make.collector(self._in_flight, ("worker",))
        # Made when there is something to show: without a registry 0 would say that no worker is registered.
        self._registered_workers: Gauge | None = None
        self._ignored_registrations: Gauge | None = None
        self._worker_changes = make.counter(
            "radixgate_gateway_worker_changes_total",
            "Workers that were found in the registry (joined), and that were forgotten (left)",
            ("change",),
            when=WITH_REGISTRY,
        )
        self._store_reachable = make.gauge("radixgate_gateway_store_reachable", "1 while Redis answers, else 0")

    def _make_failover_metrics(self) -> None:
        make = self._families
        self._moves = make.counter(
            "radixgate_gateway_moves_total",
            "Requests that went on at another worker, by what became of the last one and by how: continued, or "
            "begun_again from the prompt",
            ("cause", "outcome"),
        )
        self._refused_moves = make.counter(
            "radixgate_gateway_moves_refused_total",
            "Requests that ended with their worker because they could not go on elsewhere, by cause and by why not",
            ("cause", "why"),
        )
        self._shed = make.counter(
            "radixgate_gateway_shed_requests_total",
            "Requests refused because all workers were busy: overloaded, or expected_wait where it would be too long",
            ("reason",),
        )
        self._worker_waits = make.histogram(
            "radixgate_gateway_worker_wait_seconds",
            "How long requests waited for a worker where there was none, and whether one was found",
            QUEUE_WAIT_BUCKETS,
            ("outcome",),
        )
        self._stalls = make.counter(
            "radixgate_gateway_worker_stalls_total",
            "How often nothing moved at a worker although it had work, so that its streams moved",
            ("worker",),
        )
        self._breakers = make.gauge(
            "radixgate_gateway_worker_breaker_state",
            "0 while requests go to a worker, 2 while none do because it fails too often, 1 while one may, to see",
            ("worker",),
        )

    def _make_trust_metrics(self) -> None:
        make = self._families
        # Made when there is something to show: 0 would say that a certificate has expired, or that keys are gone.
        self._certificate_expires: Gauge | None = None
        self._signing_keys: Gauge | None = None
        self._certificate_loads = make.counter(
            "radixgate_gateway_certificate_loads_total",
            "Certificates taken up (ok), and changed files refused",
            ("outcome",),
        )
        self._signing_key_fetches = make.counter(
            "radixgate_gateway_signing_key_fetches_total", "Fetches of the identity provider's keys", ("outcome",)
        )

    def _make_quota_metrics(self) -> None:
        make = self._families
        self._quota_decisions = make.counter(
            "radixgate_gateway_quota_decisions_total",
            "Calls admitted, refused or queued, by the limit and by who decided",
            ("tenant", "outcome", "limit", "by"),
        )
        self._quota_waiting = make.gauge(
            "radixgate_gateway_queued_requests", "Calls that wait for one of their tenant's to end"
        )
        self._quota_waits = make.histogram(
            "radixgate_gateway_queue_seconds", "How long calls waited for one of their tenant's", QUEUE_WAIT_BUCKETS
        )
        self._quota_current = make.gauge(
            "radixgate_gateway_quota_store_current", "1 while Redis decides about quotas, 0 while this gateway does"
        )
        self._quota_current.set(1)
        self._quota_backlog = make.gauge(
            "radixgate_gateway_unsettled_requests", "Requests that have ended and that Redis has yet to be told of"
        )

    def _make_control_metrics(self) -> None:
        make = self._families
        self._info = make.gauge("radixgate_gateway_info", "1; its label is the gateway's version", ("version",))
        self._undertakings = make.gauge(
            "radixgate_gateway_pending_undertakings",
            "What operators asked for and is not brought about yet, by kind: call (a call of theirs that runs), "
            "adapter_load and adapter_unload (on connected workers), purge (namespaces that wait for a worker)",
            ("kind",),
        )
        self._lost_lines = make.counter(
            "radixgate_gateway_usage_log_lost_lines_total", "Lines of the usage log that could not be written"
        )

    # ------------------------------------------------------------------------------------------ the gateway's observer

    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None:
        self._requests.labels(method, code, self._labels.observe_tenant(tenant, 1)).inc()
        self._request_seconds.labels(method).observe(seconds)

    def auth_failed(self, reason: str) -> None:
        self._auth_failures.labels(reason).inc()

    def stream_opened(self, tenant: str) -> None:
        self._open_streams.opened(tenant)

    def stream_closed(self, tenant: str) -> None:
        self._open_streams.closed(tenant)

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None:
        tenant_label, adapter_label = self._labels.observe(tenant, adapter, prompt_tokens)
        who = (tenant_label, model, adapter_label)
        self._prompt_tokens.labels(*who).inc(prompt_tokens)
        for tier, tokens in (("device", device), ("host", host), ("storage", storage)):
            self._cached_tokens.labels(*who, tier).inc(tokens)

    def public_prefix_met(self, tenant: str, model: str, adapter: str, prefix_tokens: int, cached: int) -> None:
        tenant_label, adapter_label = self._labels.observe(tenant, adapter, 0)  # `admitted` has counted the work
        who = (tenant_label, model, adapter_label)
        self._public_prefix_tokens.labels(*who).inc(prefix_tokens)
        self._cached_public_tokens.labels(*who).inc(cached)

    def first_message(self, tenant: str, model: str, seconds: float) -> None:
        self._first_message.labels(self._labels.of_tenant(tenant), model).observe(seconds)

    def next_message(self, tenant: str, model: str, seconds: float) -> None:
        self._next_message.labels(model).observe(seconds)

    def stream_finished(self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float) -> None:
        tenant_label, adapter_label = self._labels.observe(tenant, adapter, completion_tokens)
        self._completion_tokens.labels(tenant_label, model, adapter_label).inc(completion_tokens)
        self._stream_seconds.labels(tenant_label, model).observe(seconds)

    def worker_connected(self, worker: str) -> None:
        self._connected.labels(worker).set(1)

    def worker_lost(self, worker: str) -> None:
        self._connected.labels(worker).set(0)
        self._losses.labels(worker).inc()

    def worker_joined(self, worker: str) -> None:
        self._worker_changes.labels("joined").inc()

    def worker_left(self, worker: str) -> None:
        self._worker_changes.labels("left").inc()
        self._families.forget({"worker": worker})

    def workers_registered(self, workers: int, ignored: int) -> None:
        if self._registered_workers is None or self._ignored_registrations is None:
            make = self._families
            self._registered_workers = make.gauge(
                "radixgate_gateway_registered_workers",
                "Workers in the registry, as this gateway last read it",
                when=WITH_REGISTRY,
            )
            self._ignored_registrations = make.gauge(
                "radixgate_gateway_ignored_registrations",
                "Entries of the registry that do not read as a worker's, or are too many",
                when=WITH_REGISTRY,
            )
        self._registered_workers.set(workers)
        self._ignored_registrations.set(ignored)

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        self._routing.hit_predicted(worker, predicted_tokens, cached_tokens, error_tokens)

    def cache_events_applied(self, worker: str, events: int) -> None:
        self._routing.cache_events_applied(worker, events)

    def cache_events_missed(self, worker: str) -> None:
        self._routing.cache_events_missed(worker)

    def cache_snapshot_taken(self, worker: str) -> None:
        self._routing.cache_snapshot_taken(worker)

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        self._routing.cache_digest_compared(worker, agrees)

    def cache_pages_known(self, worker: str, device: int, host: int) -> None:
        self._routing.cache_pages_known(worker, device, host)

    def index_pages_forgotten(self, pages: int) -> None:
        self._routing.index_pages_forgotten(pages)

    def worker_chosen(self, policy: str, reason: str) -> None:
        self._routing.worker_chosen(policy, reason)

    def request_moved(self, cause: str, outcome: str) -> None:
        self._moves.labels(cause, outcome).inc()

    def move_refused(self, cause: str, why: str) -> None:
        self._refused_moves.labels(cause, why).inc()

    def request_shed(self, reason: str) -> None:
        self._shed.labels(reason).inc()

    def worker_awaited(self, seconds: float, found: bool) -> None:
        self._worker_waits.labels("found" if found else "none").observe(seconds)

    def worker_stalled(self, worker: str) -> None:
        self._stalls.labels(worker).inc()

    def breaker_changed(self, worker: str, state: str) -> None:
        self._breakers.labels(worker).set(_BREAKER_STATES.index(state))

    def store_reachable(self, reachable: bool) -> None:
        self._store_reachable.set(reachable)

    def certificate_loaded(self, expires_at: float) -> None:
        if self._certificate_expires is None:
            name = "radixgate_gateway_certificate_expiry_timestamp_seconds"
            told = "When the servers' certificate expires"
            self._certificate_expires = self._families.gauge(name, told, when="with TLS")
        self._certificate_expires.set(expires_at)
        self._certificate_loads.labels("ok").inc()

    def certificate_refused(self, reason: str) -> None:
        self._certificate_loads.labels(reason).inc()

    def signing_keys_loaded(self, num_keys: int) -> None:
        if self._signing_keys is None:
            told = "Keys of the identity provider that can verify tokens"
            self._signing_keys = self._families.gauge("radixgate_gateway_signing_keys", told, when="with tokens")
        self._signing_keys.set(num_keys)
        self._signing_key_fetches.labels("ok").inc()

    def signing_keys_failed(self, reason: str) -> None:
        self._signing_key_fetches.labels(reason).inc()

    def quota_decided(self, tenant: str, outcome: str, limit: str, by: str) -> None:
        self._quota_decisions.labels(self._labels.observe_tenant(tenant, 1), outcome, limit, by).inc()

    def quota_waiting(self, calls: int) -> None:
        self._quota_waiting.set(calls)

    def quota_waited(self, seconds: float) -> None:
        self._quota_waits.observe(seconds)

    def quota_store_current(self, current: bool) -> None:
        self._quota_current.set(current)

    def quota_backlog(self, settlements: int) -> None:
        self._quota_backlog.set(settlements)

    def runs(
        self, version: str, in_flight: Callable[[], Mapping[str, int]], undertakings: Mapping[str, Callable[[], int]]
    ) -> None:
        """Show the version, and whenever somebody looks, requests by worker and undertakings by kind.

        The functions are called from the thread of whoever looks.
        """
        self._info.labels(version).set(1)
        self._in_flight.ask(in_flight)
        for kind, look in undertakings.items():
            self._undertakings.labels(kind).set_function(look)

    def index(self, num_pages: Callable[[], int]) -> None:
        """Show, whenever somebody looks, how many pages the index has. Called from the thread of whoever looks."""
        self._routing.index(num_pages)

    def usage_log(self, num_waiting: Callable[[], int]) -> None:
        """There is a usage log: show, whenever somebody looks, how many lines it has yet to write."""
        name, told = "radixgate_gateway_usage_log_waiting_lines", "Lines of the usage log that are yet to be written"
        self._families.gauge(name, told, when="with a usage log").set_function(num_waiting)

    def usage_lines_lost(self, lines: int) -> None:
        self._lost_lines.inc(lines)


class InFlight(Collector):
    """Requests that each worker has now: those of the workers that there are when somebody looks."""

    def __init__(self) -> None:
        self._look: Callable[[], Mapping[str, int]] = dict

    def ask(self, look: Callable[[], Mapping[str, int]]) -> None:
        self._look = look

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for worker, requests in self._look().items():
            family.add_metric([worker], requests)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "radixgate_gateway_in_flight_requests", "Requests of this gateway that a worker has now", labels=["worker"]
        )


_BREAKER_STATES = ("closed", "half_open", "open")


class OpenStreams(Collector):
    """Streams that run now, by tenant. Labels are chosen when somebody looks, so that open and close always meet."""

    def __init__(self, label_of: Callable[[str], str]) -> None:
        self._label_of = label_of
        self._open: dict[str, int] = {}

    def opened(self, tenant: str) -> None:
        self._open[tenant] = self._open.get(tenant, 0) + 1

    def closed(self, tenant: str) -> None:
        remaining = self._open[tenant] - 1
        if remaining:
            self._open[tenant] = remaining
        else:
            del self._open[tenant]

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        tally: Tally[str] = Tally()
        for tenant, streams in self._open.copy().items():  # copied in one go: the loop's thread changes it meanwhile
            tally[self._label_of(tenant)] += streams
        family = self._family()
        for label, streams in tally.items():
            family.add_metric([label], streams)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily("radixgate_gateway_open_streams", "Generate streams that run now", labels=["tenant"])
