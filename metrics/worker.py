"""What a worker shows: cache, engine and sequences. Fits the engine's observer by shape and imports nothing of it."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from metrics.described import Described
from metrics.hit_rate import HitRateCollector
from metrics.registry import (
    ADAPTER_BUCKETS,
    END_TO_END_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    INTER_TOKEN_BUCKETS,
    QUEUE_WAIT_BUCKETS,
    STEP_BUCKETS,
    STEP_TOKENS_BUCKETS,
    MetricFamilies,
)
from metrics.tiers import WITH_HOST, WITH_STORAGE, CopyDurations, PageStore, StoreCollector, TierMetrics, TierStats
from metrics.work_labels import WorkLabels


class Hit(Protocol):
    """Leading prompt tokens found, by tier."""

    @property
    def device(self) -> int: ...
    @property
    def host(self) -> int: ...
    @property
    def storage(self) -> int: ...


class Admission(Protocol):
    """What the cache had of one prompt."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def hit(self) -> Hit: ...


class Load(Protocol):
    """How busy the engine is."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def free_slots(self) -> int: ...
    @property
    def evictable_slots(self) -> int: ...
    @property
    def num_slots(self) -> int: ...


class WorkerMetrics:
    """Counts what the engine tells. Called from the engine's thread only; scraped from any.

    For every request, cached tokens of all tiers plus computed tokens are its prompt tokens, counted in one go at its
    only admission: pauses and chunks cannot count it again.
    """

    def __init__(
        self,
        worker: str,
        *,
        window_s: float = 60.0,
        max_tenants: int = 50,
        max_adapters: int = 200,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._families = MetricFamilies("worker", ["worker"])
        self._labels = WorkLabels(max_tenants, max_adapters, self._forget, clock)
        self._hit_rate = HitRateCollector(("worker", "tenant", "adapter"), window_s, clock)
        self.registry = self._families.registry
        self._families.collector(self._hit_rate, ("worker", "tenant", "adapter"))
        self._tiers: TierMetrics | None = None  # without a host tier nothing shows that speaks of one
        self._make_token_counters()
        self._make_sequence_metrics()
        self._make_engine_metrics()
        self._make_cache_metrics()
        self._make_feed_metrics()
        self._make_trust_metrics()
        self._make_registry_metrics()
        self._families.process_metrics()

    @property
    def described(self) -> tuple[Described, ...]:
        """Every family that this worker shows or, by what has been there so far, can show."""
        return self._families.described

    def _make_token_counters(self) -> None:
        make, who = self._families, ("tenant", "adapter")
        self._prompt_tokens = make.counter("radixgate_prompt_tokens_total", "Prompt tokens of admitted requests", who)
        self._cached_tokens = make.counter(
            "radixgate_cached_tokens_total",
            "Prompt tokens found in the cache, by the tier that held them",
            (*who, "tier"),
        )
        self._computed_tokens = make.counter(
            "radixgate_computed_prompt_tokens_total", "Prompt tokens that no tier of the cache held", who
        )
        self._continued = make.counter(
            "radixgate_continued_sequences_total", "Sequences that went on here after they were begun elsewhere", who
        )
        self._continued_tokens = make.counter(
            "radixgate_continued_tokens_total",
            "Tokens that sequences begun elsewhere came with, by the tier that held them or computed once more",
            (*who, "source"),
        )
        self._completion_tokens = make.counter("radixgate_completion_tokens_total", "Tokens generated", who)

    def _make_sequence_metrics(self) -> None:
        make = self._families
        self._finished = make.counter(
            "radixgate_sequences_finished_total", "Sequences that ended, by how", ("tenant", "adapter", "outcome")
        )
        self._pauses = make.counter(
            "radixgate_pauses_total", "Running sequences that gave up their slots for want of slots", ("tenant",)
        )
        self._queue_wait = make.histogram(
            "radixgate_queue_wait_seconds", "From submission to admission", QUEUE_WAIT_BUCKETS, ("tenant",)
        )
        self._first_token = make.histogram(
            "radixgate_time_to_first_token_seconds",
            "From submission to the first token",
            FIRST_TOKEN_BUCKETS,
            ("tenant",),
        )
        self._inter_token = make.histogram(
            "radixgate_inter_token_seconds", "Between two tokens of a sequence", INTER_TOKEN_BUCKETS
        ).labels(self._worker)
        self._end_to_end = make.histogram(
            "radixgate_sequence_seconds", "From submission to the end of a sequence", END_TO_END_BUCKETS, ("tenant",)
        )

    def _make_engine_metrics(self) -> None:
        make = self._families
        self._info = make.gauge(
            "radixgate_worker_info",
            "1; its labels say what this worker serves and with which version",
            ("version", "model", "model_revision", "device", "number_format"),
        )
        self._stalled = make.gauge(
            "radixgate_engine_stalled_seconds", "For how long nothing has moved while there is work; 0 without work"
        )
        self._step_seconds = make.histogram(
            "radixgate_step_seconds", "Duration of a forward pass", STEP_BUCKETS
        ).labels(self._worker)
        self._step_tokens = make.histogram(
            "radixgate_step_tokens", "Tokens in a forward pass", STEP_TOKENS_BUCKETS
        ).labels(self._worker)
        self._step_sequences = make.histogram(
            "radixgate_step_sequences", "Sequences in a forward pass", STEP_TOKENS_BUCKETS
        ).labels(self._worker)
        self._running = make.gauge("radixgate_running_sequences", "Sequences that hold slots").labels(self._worker)
        self._waiting = make.gauge(
            "radixgate_waiting_sequences", "Sequences in the waiting line, paused ones included"
        ).labels(self._worker)
        self._adapter_seconds = make.histogram(
            "radixgate_adapter_load_seconds", "How long LoRA adapters took to come to the device", ADAPTER_BUCKETS
        ).labels(self._worker)
        self._adapter_failures = make.counter(
            "radixgate_adapter_load_failures_total", "LoRA adapters that could not be brought to the device"
        ).labels(self._worker)

    def _make_cache_metrics(self) -> None:
        make = self._families
        self._evicted = make.counter("radixgate_evicted_tokens_total", "Cached tokens evicted, by tier", ("tier",))
        self._evicted_from_device = self._evicted.labels(self._worker, "device")
        self._slots = make.gauge(
            "radixgate_slots",
            "Slots by tier and state: free, evictable (cached, and not in use) or in_use",
            ("tier", "state"),
        )
        self._free_slots = self._slots.labels(self._worker, "device", "free")
        self._evictable_slots = self._slots.labels(self._worker, "device", "evictable")
        self._used_slots = self._slots.labels(self._worker, "device", "in_use")
        self._namespaces = make.gauge("radixgate_cache_namespaces", "Namespaces that have something in a tier").labels(
            self._worker
        )
        self._cut_floors = make.gauge(
            "radixgate_cut_floor_tokens", "Tokens of floors that policies promise and that do not fit beside the others"
        ).labels(self._worker)
        self._token_bytes = make.gauge("radixgate_kv_bytes_per_token", "Memory of one token's keys and values")

    def _make_feed_metrics(self) -> None:
        make = self._families
        events = make.counter(
            "radixgate_cache_events_total",
            "Changes of what the cache holds, by whether a gateway was told of them or reads too slowly",
            ("outcome",),
        )
        self._events_sent = events.labels(self._worker, "sent")
        self._events_dropped = events.labels(self._worker, "dropped")
        self._snapshots_sent = make.counter(
            "radixgate_cache_snapshots_total", "Times that a gateway was told all that the cache holds"
        ).labels(self._worker)

    def _make_trust_metrics(self) -> None:
        make, with_tls = self._families, "with TLS"
        self._certificate_expires = make.gauge(
            "radixgate_certificate_expiry_timestamp_seconds",
            "When the certificate that gateways get to see expires",
            when=with_tls,
        )
        self._certificate_loads = make.counter(
            "radixgate_certificate_loads_total",
            "Certificates taken up (ok), and changed files refused",
            ("outcome",),
            when=with_tls,
        )

    def _make_registry_metrics(self) -> None:
        make, with_registry = self._families, "with a registry"
        self._registered = make.gauge(
            "radixgate_worker_registered",
            "1 while gateways can find this worker in the registry, else 0",
            when=with_registry,
        )
        self._registrations = make.counter(
            "radixgate_worker_registrations_total",
            "Times that this worker made or renewed its entry (ok), that another worker had it (taken), or that Redis "
            "was away",
            ("outcome",),
            when=with_registry,
        )

    # ------------------------------------------------------------------------------------------- the engine's observer

    def admitted(self, tenant: str, adapter: str, admission: Admission, queue_wait_s: float) -> None:
        hit, prompt_tokens = admission.hit, admission.prompt_tokens
        who = self._observe(tenant, adapter, prompt_tokens)
        cached = {"device": hit.device, "host": hit.host, "storage": hit.storage}
        self._prompt_tokens.labels(*who).inc(prompt_tokens)
        for tier, tokens in cached.items():
            self._cached_tokens.labels(*who, tier).inc(tokens)
        num_cached = sum(cached.values())
        self._computed_tokens.labels(*who).inc(prompt_tokens - num_cached)
        self._hit_rate.admitted(who, num_cached, prompt_tokens)
        self._queue_wait.labels(*who[:2]).observe(queue_wait_s)

    def continued(self, tenant: str, adapter: str, admission: Admission) -> None:
        hit, num_tokens = admission.hit, admission.prompt_tokens
        who = self._observe(tenant, adapter, num_tokens)
        self._continued.labels(*who).inc()
        found = {"device": hit.device, "host": hit.host, "storage": hit.storage}
        for source, tokens in {**found, "computed": num_tokens - sum(found.values())}.items():
            self._continued_tokens.labels(*who, source).inc(tokens)

    def first_token(self, tenant: str, adapter: str, ttft_s: float) -> None:
        self._first_token.labels(self._worker, self._labels.of_tenant(tenant)).observe(ttft_s)

    def next_token(self, tenant: str, adapter: str, gap_s: float) -> None:
        self._inter_token.observe(gap_s)

    def paused(self, tenant: str, adapter: str) -> None:
        self._pauses.labels(self._worker, self._labels.of_tenant(tenant)).inc()

    def finished(self, tenant: str, adapter: str, outcome: str, output_tokens: int, e2e_s: float) -> None:
        who = self._observe(tenant, adapter, output_tokens)
        self._finished.labels(*who, outcome).inc()
        self._completion_tokens.labels(*who).inc(output_tokens)
        self._end_to_end.labels(*who[:2]).observe(e2e_s)

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None:
        self._step_seconds.observe(duration_s)
        self._step_tokens.observe(num_tokens)
        self._step_sequences.observe(num_sequences)

    def evicted(self, num_tokens: int) -> None:
        self._evicted_from_device.inc(num_tokens)

    def load_changed(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._free_slots.set(load.free_slots)
        self._evictable_slots.set(load.evictable_slots)
        self._used_slots.set(load.num_slots - load.free_slots - load.evictable_slots)

    def cache_changed(self, num_namespaces: int, cut_floor_tokens: int) -> None:
        self._namespaces.set(num_namespaces)
        self._cut_floors.set(cut_floor_tokens)

    def tiers_changed(self, stats: TierStats) -> None:
        if self._tiers is not None:
            self._tiers.changed(stats)

    def copies_ended(self, durations: CopyDurations) -> None:
        if self._tiers is not None:
            self._tiers.copied(durations)

    # ------------------------------------------------------------------------------------------------- the worker

    def serves(
        self, *, version: str, model: str, model_revision: str, device: str, number_format: str, bytes_per_token: int
    ) -> None:
        """What this worker serves, and what a token takes in each pool."""
        self._info.labels(self._worker, version, model, model_revision, device, number_format).set(1)
        self._token_bytes.labels(self._worker).set(bytes_per_token)

    def engine(self, stalled_s: Callable[[], float]) -> None:
        """Ask, whenever somebody looks, for how long the engine has been stalled: from another thread than its own."""
        self._stalled.labels(self._worker).set_function(stalled_s)

    # ------------------------------------------------------------------------------------- what gateways are told of it

    def cache_events_sent(self, number: int) -> None:
        """A gateway was told of so many changes of the cache. From the event loop, as the next two."""
        self._events_sent.inc(number)

    def cache_events_dropped(self, number: int) -> None:
        """A gateway that reads too slowly misses so many."""
        self._events_dropped.inc(number)

    def cache_snapshot_sent(self) -> None:
        """A gateway was told all that the cache holds."""
        self._snapshots_sent.inc()

    # ------------------------------------------------------------------------------------------------- the tiers below

    def host_pool(self, *, pinned: bool, num_bytes: int, bytes_per_token: int) -> None:
        """There is a host tier: show what its pool is, and from now on what `tiers_changed` tells."""
        make = self._families
        self._tiers = TierMetrics(
            make,
            self._worker,
            self._evicted.labels(self._worker, "host"),
            {state: self._slots.labels(self._worker, "host", state) for state in ("free", "evictable", "in_use")},
            bytes_per_token,
        )
        make.gauge("radixgate_host_pool_bytes", "Memory of the host pool", when=WITH_HOST).labels(self._worker).set(
            num_bytes
        )
        make.gauge(
            "radixgate_host_pool_pinned",
            "1 if the host pool is pinned, 0 if it is pageable and copies are slower",
            when=WITH_HOST,
        ).labels(self._worker).set(pinned)

    def storage(self, store: PageStore) -> None:
        """Show a store's figures whenever somebody looks."""
        self._families.collector(StoreCollector(store, self._worker), ("worker", "store"), when=WITH_STORAGE)

    # ------------------------------------------------------------------------------------------------------ adapters

    def adapters(self, *, num_resident: Callable[[], int], host_bytes: Callable[[], int]) -> None:
        """Show, whenever somebody looks, how many adapters lie where they compute, and what all of them take."""
        for name, told, look in (
            ("radixgate_resident_adapters", "LoRA adapters on the device", num_resident),
            ("radixgate_adapter_host_bytes", "Memory of the weights of all LoRA adapters on the host", host_bytes),
        ):
            self._families.gauge(name, told).labels(self._worker).set_function(look)

    def adapter_loaded(self, seconds: float) -> None:
        """An adapter came to the device. From any thread, as the next."""
        self._adapter_seconds.observe(seconds)

    def adapter_load_failed(self) -> None:
        self._adapter_failures.inc()

    def certificate_loaded(self, expires_at: float) -> None:
        """A certificate is in use from now on; it expires then, in seconds since the epoch."""
        self._certificate_expires.labels(self._worker).set(expires_at)
        self._certificate_loads.labels(self._worker, "ok").inc()

    def certificate_refused(self, reason: str) -> None:
        """Changed files cannot be used, the last ones still are."""
        self._certificate_loads.labels(self._worker, reason).inc()

    def registered(self, outcome: str) -> None:
        """The registry has this worker ("ok"), has another one in its place ("taken"), or is "away"."""
        self._registered.labels(self._worker).set(outcome == "ok")
        self._registrations.labels(self._worker, outcome).inc()

    def unregistered(self) -> None:
        """The worker ends, and is in the registry no more."""
        self._registered.labels(self._worker).set(0)

    # ------------------------------------------------------------------------------------------------- bounded labels

    def _observe(self, tenant: str, adapter: str, weight: int) -> tuple[str, str, str]:
        """Return the labels (worker, tenant, adapter) of work worth `weight` tokens."""
        return self._worker, *self._labels.observe(tenant, adapter, weight)

    def _forget(self, labels: Mapping[str, str]) -> None:
        self._families.forget(labels)
        self._hit_rate.forget(labels)
