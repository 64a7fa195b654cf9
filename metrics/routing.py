"""What a gateway shows of its choice of workers: what it knows of their caches, how well, and whom it chose why."""

from collections.abc import Callable

from metrics.registry import MetricFamilies


class RoutingMetrics:
    """Counts what gateways tell of events, digests, expectations and choices."""

    def __init__(self, make: MetricFamilies) -> None:
        self._predicted_tokens = make.counter(
            "radixgate_gateway_predicted_cached_tokens_total",
            "Prompt tokens that this gateway expected a worker to have on device or host, in whole pages",
            ("worker",),
        )
        self._delivered_tokens = make.counter(
            "radixgate_gateway_delivered_cached_tokens_total",
            "Prompt tokens that a worker had on device or host, of the requests that the expectations are about",
            ("worker",),
        )
        self._mispredicted_tokens = make.counter(
            "radixgate_gateway_mispredicted_tokens_total",
            "By how many tokens expectations were off: over, less was cached; under, more was",
            ("worker", "direction"),
        )
        self._predictions = make.counter(
            "radixgate_gateway_predictions_total",
            "Requests whose cached tokens were as expected (right), fewer (over) or more (under), page by page",
            ("worker", "outcome"),
        )
        self._events = make.counter(
            "radixgate_gateway_cache_events_total", "Changes of workers' caches that were applied", ("worker",)
        )
        self._gaps = make.counter(
            "radixgate_gateway_cache_event_gaps_total",
            "How often events of a worker were missed; a snapshot is asked for then",
            ("worker",),
        )
        self._snapshots = make.counter(
            "radixgate_gateway_cache_snapshots_total",
            "Snapshots of workers' caches that were taken: with each connection, and after what was missed",
            ("worker",),
        )
        self._digests = make.counter(
            "radixgate_gateway_cache_digests_total",
            "Digests of workers' caches beside what this gateway knows: agrees or differs",
            ("worker", "outcome"),
        )
        self._pages = make.gauge(
            "radixgate_gateway_index_pages", "Pages that a worker is known to have, by tier", ("worker", "tier")
        )
        self._forgotten = make.counter(
            "radixgate_gateway_index_forgotten_pages_total",
            "Pages that were forgotten because there was no room for them in the index",
        )
        self._size = make.gauge("radixgate_gateway_index_size", "Different pages in the index, of workers and stores")
        self._choices = make.counter(
            "radixgate_gateway_choices_total",
            "Workers chosen, by policy and reason: only, prefix, load, warm_up, turn, session",
            ("policy", "reason"),
        )

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        self._predicted_tokens.labels(worker).inc(predicted_tokens)
        self._delivered_tokens.labels(worker).inc(cached_tokens)
        for direction, tokens in (("over", max(0, error_tokens)), ("under", max(0, -error_tokens))):
            self._mispredicted_tokens.labels(worker, direction).inc(tokens)
        outcome = "over" if error_tokens > 0 else "under" if error_tokens < 0 else "right"
        self._predictions.labels(worker, outcome).inc()

    def cache_events_applied(self, worker: str, events: int) -> None:
        self._events.labels(worker).inc(events)

    def cache_events_missed(self, worker: str) -> None:
        self._gaps.labels(worker).inc()

    def cache_snapshot_taken(self, worker: str) -> None:
        self._snapshots.labels(worker).inc()

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        self._digests.labels(worker, "agrees" if agrees else "differs").inc()

    def cache_pages_known(self, worker: str, device: int, host: int) -> None:
        self._pages.labels(worker, "device").set(device)
        self._pages.labels(worker, "host").set(host)

    def index_pages_forgotten(self, pages: int) -> None:
        self._forgotten.inc(pages)

    def worker_chosen(self, policy: str, reason: str) -> None:
        self._choices.labels(policy, reason).inc()

    def index(self, num_pages: Callable[[], int]) -> None:
        """Show, whenever somebody looks, how many pages there are. Called from the thread of whoever looks."""
        self._size.set_function(num_pages)
