"""What the gateway tells whoever measures it.

Arguments are plain values, so that an implementation (Prometheus lives in `metrics`) needs to import nothing from
here. Neither prompt text nor token ids ever pass through. Calls come from the event loop's thread and must not block.
"""

from typing import Protocol


class GatewayObserver(Protocol):
    """Durations are in seconds; `tenant` is empty where the caller was not authenticated."""

    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None:
        """An RPC of the gateway's own services ended. `method` is "Service/Method" without package, e.g.
        "InferenceService/Generate"; `code` is the gRPC status name, e.g. "OK".
        """
        ...

    def auth_failed(self, reason: str) -> None:
        """A credential was refused: "missing", "suspended"; of API keys "malformed", "unknown", "wrong_secret",
        "revoked" or "expired"; of tokens and certificates a word that begins with "token_" or "certificate_".
        """
        ...

    def stream_opened(self, tenant: str) -> None:
        """A Generate stream was handed to a worker."""
        ...

    def stream_closed(self, tenant: str) -> None:
        """A stream reported by `stream_opened` has ended, however it ended."""
        ...

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None:
        """A worker admitted a request; the last three are its cached prompt tokens by tier. Once for each request."""
        ...

    def public_prefix_met(self, tenant: str, model: str, adapter: str, prefix_tokens: int, cached: int) -> None:
        """An admitted request begins with a public prefix; so many of that prefix's tokens were cached."""
        ...

    def first_message(self, tenant: str, model: str, seconds: float) -> None:
        """The first tokens of a stream went to the client, `seconds` after its RPC arrived."""
        ...

    def next_message(self, tenant: str, model: str, seconds: float) -> None:
        """Further tokens went to the client, `seconds` after the message before."""
        ...

    def stream_finished(self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float) -> None:
        """A stream came to its regular end, `seconds` after its RPC arrived."""
        ...

    def worker_connected(self, worker: str) -> None:
        """The stream to a worker (its configured address) is up."""
        ...

    def worker_lost(self, worker: str) -> None:
        """The stream to a worker is down. Only after `worker_connected`."""
        ...

    def worker_joined(self, worker: str) -> None:
        """A worker was found in the registry, and its link is kept from now on."""
        ...

    def worker_left(self, worker: str) -> None:
        """A worker that was found in the registry is forgotten: nothing more will be said of it."""
        ...

    def workers_registered(self, workers: int, ignored: int) -> None:
        """So many workers are registered, beside so many entries of the registry that are none, or too many."""
        ...

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        """A worker had `cached_tokens` of a prompt, where this gateway expected at least `predicted_tokens`. The
        expectation was off by `error_tokens`: above 0 if less was cached, below 0 if more was.
        """
        ...

    def request_moved(self, cause: str, outcome: str) -> None:
        """A request goes on at another worker because of what became of its last one: "lost", "silent", "stalled",
        "failed", "shutting_down" or "overloaded". `outcome` is how: "continued", or "begun_again" from the prompt.
        """
        ...

    def move_refused(self, cause: str, why: str) -> None:
        """A request could not go on elsewhere: there was "no_worker", or none with its "adapter", it was "too_long" for
        the others, they were "overloaded", it had used up its "moves", or those are "off"; the other worker "refused"
        what it had by then, or computed something else ("diverged").
        """
        ...

    def request_shed(self, reason: str) -> None:
        """A request was refused because all workers are "overloaded", or it would have waited too long
        ("expected_wait").
        """
        ...

    def worker_awaited(self, seconds: float, found: bool) -> None:
        """A request has waited so long for a worker, where there was none."""
        ...

    def worker_stalled(self, worker: str) -> None:
        """Nothing moves at a worker although it has work. Its streams move."""
        ...

    def breaker_changed(self, worker: str, state: str) -> None:
        """The breaker of a worker is "closed", "open" or "half_open" from now on. At first it is closed."""
        ...

    def cache_events_applied(self, worker: str, events: int) -> None:
        """So many changes of a worker's cache were told and taken over."""
        ...

    def cache_events_missed(self, worker: str) -> None:
        """Some were not told, or lost."""
        ...

    def cache_snapshot_taken(self, worker: str) -> None:
        """All that a worker's cache holds was told and taken over."""
        ...

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        """What a worker's cache holds, in short, was compared with what this gateway knows."""
        ...

    def cache_pages_known(self, worker: str, device: int, host: int) -> None:
        """A worker is known to have so many pages now."""
        ...

    def index_pages_forgotten(self, pages: int) -> None:
        """So many pages had no room in the index any more."""
        ...

    def worker_chosen(self, policy: str, reason: str) -> None:
        """A request got its worker: "only", "prefix", "load", "warm_up", "turn" or "session"."""
        ...

    def store_reachable(self, reachable: bool) -> None:
        """Redis has begun, or ceased, to answer."""
        ...

    def certificate_loaded(self, expires_at: float) -> None:
        """The servers' certificate is in use from now on; it expires then, in seconds since the epoch."""
        ...

    def certificate_refused(self, reason: str) -> None:
        """Changed files cannot be used, the last ones still are: "unreadable", "malformed", "mismatch", "expired",
        "not_yet_valid" or "unusable".
        """
        ...

    def signing_keys_loaded(self, num_keys: int) -> None:
        """The identity provider's keys were fetched; so many can verify tokens."""
        ...

    def signing_keys_failed(self, reason: str) -> None:
        """The identity provider's keys could not be fetched, the last ones stay: "unreachable" or "malformed"."""
        ...

    def quota_decided(self, tenant: str, outcome: str, limit: str, by: str) -> None:
        """A call was "admitted", "refused" or "queued", the last two by a limit (the policy's field). `by` is who
        decided: "shared" for Redis, "local", "allow" or "refuse" for what a gateway does without it, "memory" for a
        refusal that still held.
        """
        ...

    def quota_waiting(self, calls: int) -> None:
        """So many calls of this gateway wait now for one of their tenant's to end."""
        ...

    def quota_waited(self, seconds: float) -> None:
        """A call has waited so long for one of its tenant's to end, whatever came of it."""
        ...

    def quota_store_current(self, current: bool) -> None:
        """Redis decides about quotas, or this gateway alone. Told of changes."""
        ...

    def quota_backlog(self, settlements: int) -> None:
        """So many requests have ended that Redis has yet to be told of."""
        ...

    def usage_lines_lost(self, lines: int) -> None:
        """So many lines of the usage log will never be written. From any thread."""
        ...


class NullObserver:
    """Measures nothing."""

    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None:
        pass

    def auth_failed(self, reason: str) -> None:
        pass

    def stream_opened(self, tenant: str) -> None:
        pass

    def stream_closed(self, tenant: str) -> None:
        pass

    def admitted(
        self, tenant: str, model: str, adapter: str, prompt_tokens: int, device: int, host: int, storage: int
    ) -> None:
        pass

    def public_prefix_met(self, tenant: str, model: str, adapter: str, prefix_tokens: int, cached: int) -> None:
        pass

    def first_message(self, tenant: str, model: str, seconds: float) -> None:
        pass

    def next_message(self, tenant: str, model: str, seconds: float) -> None:
        pass

    def stream_finished(self, tenant: str, model: str, adapter: str, completion_tokens: int, seconds: float) -> None:
        pass

    def worker_connected(self, worker: str) -> None:
        pass

    def worker_lost(self, worker: str) -> None:
        pass

    def worker_joined(self, worker: str) -> None:
        pass

    def worker_left(self, worker: str) -> None:
        pass

    def workers_registered(self, workers: int, ignored: int) -> None:
        pass

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        pass

    def request_moved(self, cause: str, outcome: str) -> None:
        pass

    def move_refused(self, cause: str, why: str) -> None:
        pass

    def request_shed(self, reason: str) -> None:
        pass

    def worker_awaited(self, seconds: float, found: bool) -> None:
        pass

    def worker_stalled(self, worker: str) -> None:
        pass

    def breaker_changed(self, worker: str, state: str) -> None:
        pass

    def cache_events_applied(self, worker: str, events: int) -> None:
        pass

    def cache_events_missed(self, worker: str) -> None:
        pass

    def cache_snapshot_taken(self, worker: str) -> None:
        pass

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        pass

    def cache_pages_known(self, worker: str, device: int, host: int) -> None:
        pass

    def index_pages_forgotten(self, pages: int) -> None:
        pass

    def worker_chosen(self, policy: str, reason: str) -> None:
        pass

    def store_reachable(self, reachable: bool) -> None:
        pass

    def certificate_loaded(self, expires_at: float) -> None:
        pass

    def certificate_refused(self, reason: str) -> None:
        pass

    def signing_keys_loaded(self, num_keys: int) -> None:
        pass

    def signing_keys_failed(self, reason: str) -> None:
        pass

    def quota_decided(self, tenant: str, outcome: str, limit: str, by: str) -> None:
        pass

    def quota_waiting(self, calls: int) -> None:
        pass

    def quota_waited(self, seconds: float) -> None:
        pass

    def quota_store_current(self, current: bool) -> None:
        pass

    def quota_backlog(self, settlements: int) -> None:
        pass

    def usage_lines_lost(self, lines: int) -> None:
        pass
