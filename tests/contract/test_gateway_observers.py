"""Whoever observes a gateway takes everything that a gateway tells, in any order."""

import pytest

from gateway.observer import GatewayObserver, NullObserver
from metrics.gateway import GatewayMetrics
from tests.fakes.gateway_stack import RecordingObserver


@pytest.fixture(params=[NullObserver, RecordingObserver, GatewayMetrics])
def observer(request: pytest.FixtureRequest) -> GatewayObserver:
    made: GatewayObserver = request.param()
    return made


def tell_of_one_stream(observer: GatewayObserver, tenant: str) -> None:
    observer.stream_opened(tenant)
    observer.admitted(tenant, "model", "adapter", 10, 3, 2, 1)
    observer.public_prefix_met(tenant, "model", "adapter", 5, 4)
    observer.first_message(tenant, "model", 0.5)
    observer.next_message(tenant, "model", 0.01)
    observer.stream_finished(tenant, "model", "adapter", 7, 1.5)
    observer.stream_closed(tenant)
    observer.rpc_finished("InferenceService/Generate", "OK", tenant, 1.5)


def test_a_stream_is_told_from_beginning_to_end(observer: GatewayObserver) -> None:
    for tenant in ("acme", "globex", "acme", ""):
        tell_of_one_stream(observer, tenant)


def test_more_tenants_than_anybody_counts_are_no_trouble(observer: GatewayObserver) -> None:
    for i in range(500):
        tell_of_one_stream(observer, f"tenant-{i}")


def test_failures_and_workers_are_told(observer: GatewayObserver) -> None:
    for reason in ("missing", "malformed", "unknown", "wrong_secret", "revoked"):
        observer.auth_failed(reason)
    observer.rpc_finished("InferenceService/Generate", "UNAUTHENTICATED", "", 0.001)
    for _ in range(2):
        observer.worker_connected("127.0.0.1:1")
        observer.worker_lost("127.0.0.1:1")


def test_moves_and_what_workers_are_like_are_told(observer: GatewayObserver) -> None:
    observer.request_moved("lost", "continued")
    observer.move_refused("silent", "no_worker")
    observer.request_shed("overloaded")
    observer.worker_awaited(0.5, found=True)
    observer.worker_awaited(5.0, found=False)
    observer.worker_stalled("127.0.0.1:1")
    for state in ("open", "half_open", "closed"):
        observer.breaker_changed("127.0.0.1:1", state)


def test_workers_that_come_and_go_are_told(observer: GatewayObserver) -> None:
    for number in range(2):
        observer.workers_registered(1, number)
        observer.worker_joined("127.0.0.1:1")
        observer.worker_connected("127.0.0.1:1")
        observer.hit_predicted("127.0.0.1:1", 1, 1, 0)
        observer.worker_lost("127.0.0.1:1")
        observer.worker_left("127.0.0.1:1")


def test_certificates_and_signing_keys_are_told(observer: GatewayObserver) -> None:
    for _ in range(2):
        observer.certificate_refused("mismatch")
        observer.certificate_loaded(1.9e9)
        observer.signing_keys_failed("unreachable")
        observer.signing_keys_loaded(2)


def test_quotas_are_told(observer: GatewayObserver) -> None:
    for i in range(300):
        observer.quota_decided(f"tenant-{i}", "admitted", "", "shared")
        observer.quota_decided(f"tenant-{i}", "refused", "requests_per_minute", "memory")
        observer.quota_decided(f"tenant-{i}", "queued", "max_concurrent_requests", "local")
    for current in (False, True):
        observer.quota_store_current(current)
    observer.quota_waiting(3)
    observer.quota_waited(0.5)
    observer.quota_backlog(7)


def test_what_is_known_of_caches_and_who_was_chosen_is_told(observer: GatewayObserver) -> None:
    for worker in ("127.0.0.1:1", "127.0.0.1:2"):
        observer.cache_events_applied(worker, 3)
        observer.cache_events_missed(worker)
        observer.cache_snapshot_taken(worker)
        for agrees in (True, False):
            observer.cache_digest_compared(worker, agrees)
        observer.cache_pages_known(worker, 5, 7)
        for error in (-3, 0, 3):
            observer.hit_predicted(worker, 64, 64 - error, error)
    observer.index_pages_forgotten(4)
    for reason in ("only", "prefix", "load", "warm_up", "turn", "session"):
        observer.worker_chosen("cache_aware", reason)
