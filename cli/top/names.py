"""The metrics that are looked at. A test compares them with what workers and gateways really show."""

from typing import Final

STARTED: Final = "process_start_time_seconds"

# Of workers; all have the label `worker`.
WORKER_INFO: Final = "radixgate_worker_info"
RUNNING: Final = "radixgate_running_sequences"
WAITING: Final = "radixgate_waiting_sequences"
SLOTS: Final = "radixgate_slots"
SETTLED: Final = "radixgate_settled_slots"
PROMPT: Final = "radixgate_prompt_tokens_total"
CACHED: Final = "radixgate_cached_tokens_total"
COMPLETION: Final = "radixgate_completion_tokens_total"
STEP: Final = "radixgate_step_seconds"
GAPS: Final = "radixgate_inter_token_seconds"
WORKER_TTFT: Final = "radixgate_time_to_first_token_seconds"
QUEUE_WAIT: Final = "radixgate_queue_wait_seconds"
PAUSES: Final = "radixgate_pauses_total"
STALLED: Final = "radixgate_engine_stalled_seconds"
EVICTED: Final = "radixgate_evicted_tokens_total"
LOST: Final = "radixgate_dropped_mirror_tokens_total"
MIRRORED: Final = "radixgate_mirrored_bytes_total"
LOADED_BACK: Final = "radixgate_loaded_back_bytes_total"
PREFETCHED: Final = "radixgate_prefetched_bytes_total"
RESIDENT: Final = "radixgate_resident_adapters"
STORED: Final = "radixgate_storage_bytes"

# Of gateways.
GATEWAY_INFO: Final = "radixgate_gateway_info"
REQUESTS: Final = "radixgate_gateway_requests_total"
GATEWAY_TTFT: Final = "radixgate_gateway_time_to_first_token_seconds"
STREAMS: Final = "radixgate_gateway_open_streams"
QUEUED: Final = "radixgate_gateway_queued_requests"
REDIS: Final = "radixgate_gateway_store_reachable"
SHARED_LIMITS: Final = "radixgate_gateway_quota_store_current"
CONNECTED: Final = "radixgate_gateway_worker_connected"
AUTH_FAILURES: Final = "radixgate_gateway_auth_failures_total"
DECISIONS: Final = "radixgate_gateway_quota_decisions_total"
MOVES: Final = "radixgate_gateway_moves_total"
BREAKERS: Final = "radixgate_gateway_worker_breaker_state"
PREDICTIONS: Final = "radixgate_gateway_predictions_total"
INDEX: Final = "radixgate_gateway_index_size"
GATEWAY_PROMPT: Final = "radixgate_gateway_prompt_tokens_total"
GATEWAY_CACHED: Final = "radixgate_gateway_cached_tokens_total"
GATEWAY_COMPLETION: Final = "radixgate_gateway_completion_tokens_total"

HISTOGRAMS: Final = (STEP, GAPS, WORKER_TTFT, QUEUE_WAIT, GATEWAY_TTFT)
PLAIN: Final = (
    STARTED, WORKER_INFO, RUNNING, WAITING, SLOTS, SETTLED, PROMPT, CACHED, COMPLETION, PAUSES, STALLED, EVICTED, LOST,
    MIRRORED, LOADED_BACK, PREFETCHED, RESIDENT, STORED, GATEWAY_INFO, REQUESTS, STREAMS, QUEUED, REDIS, SHARED_LIMITS,
    CONNECTED, AUTH_FAILURES, DECISIONS, MOVES, BREAKERS, PREDICTIONS, INDEX, GATEWAY_PROMPT, GATEWAY_CACHED,
    GATEWAY_COMPLETION,
)  # fmt: skip
# Of these the buckets are looked at as well: quantiles come from them.
_WITH_BUCKETS: Final = (WORKER_TTFT, QUEUE_WAIT, GATEWAY_TTFT)

SERIES: Final = frozenset(
    (
        *PLAIN,
        *(f"{name}_{part}" for name in HISTOGRAMS for part in ("sum", "count")),
        *(f"{name}_bucket" for name in _WITH_BUCKETS),
    )
)
"""The names of all samples that are read."""
