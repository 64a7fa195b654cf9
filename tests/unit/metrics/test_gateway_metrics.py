from gateway.observer import GatewayObserver
from metrics.gateway import GatewayMetrics


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_the_gateway_accepts_them_as_its_observer() -> None:
    observer: GatewayObserver = GatewayMetrics()
    assert observer is not None


def test_requests_are_counted_by_method_status_and_tenant() -> None:
    metrics = GatewayMetrics()
    metrics.rpc_finished("InferenceService/Generate", "OK", "a", 0.5)
    metrics.rpc_finished("InferenceService/Generate", "UNAUTHENTICATED", "", 0.01)
    name = "radixgate_gateway_requests_total"
    assert value(metrics, name, method="InferenceService/Generate", code="OK", tenant="a") == 1
    assert value(metrics, name, method="InferenceService/Generate", code="UNAUTHENTICATED", tenant="") == 1


def test_tokens_are_counted_as_responses_report_them() -> None:
    metrics = GatewayMetrics()
    metrics.admitted("a", "m", "", 100, 60, 10, 5)
    metrics.stream_finished("a", "m", "", 32, 1.5)
    who = {"tenant": "a", "model": "m", "adapter": ""}
    assert value(metrics, "radixgate_gateway_prompt_tokens_total", **who) == 100
    assert value(metrics, "radixgate_gateway_cached_tokens_total", **who, tier="device") == 60
    assert value(metrics, "radixgate_gateway_cached_tokens_total", **who, tier="storage") == 5
    assert value(metrics, "radixgate_gateway_completion_tokens_total", **who) == 32
    assert value(metrics, "radixgate_gateway_stream_seconds_sum", tenant="a", model="m") == 1.5


def test_tokens_of_public_prefixes_are_counted_apart() -> None:
    metrics = GatewayMetrics()
    for cached in (0, 50):
        metrics.admitted("a", "m", "poet", 60, cached, 0, 0)
        metrics.public_prefix_met("a", "m", "poet", 50, cached)
    metrics.admitted("a", "m", "poet", 60, 60, 0, 0)
    who = {"tenant": "a", "model": "m", "adapter": "poet"}
    assert value(metrics, "radixgate_gateway_public_prefix_tokens_total", **who) == 100
    assert value(metrics, "radixgate_gateway_cached_public_tokens_total", **who) == 50
    assert value(metrics, "radixgate_gateway_cached_tokens_total", **who, tier="device") == 110


def test_no_name_is_shared_with_the_workers_counters() -> None:
    metrics = GatewayMetrics()
    metrics.admitted("a", "m", "", 100, 60, 10, 5)
    names = [family.name for family in metrics.registry.collect()]
    assert all(name.startswith(("radixgate_gateway_", "process_")) for name in names)


def test_open_streams_return_to_nothing() -> None:
    metrics = GatewayMetrics()
    metrics.rpc_finished("InferenceService/Generate", "OK", "a", 0.5)
    metrics.stream_opened("a")
    metrics.stream_opened("a")
    assert value(metrics, "radixgate_gateway_open_streams", tenant="a") == 2
    metrics.stream_closed("a")
    metrics.stream_closed("a")
    assert value(metrics, "radixgate_gateway_open_streams", tenant="a") is None


def test_open_streams_survive_a_change_of_label() -> None:
    metrics = GatewayMetrics(max_tenants=1)
    metrics.admitted("small", "m", "", 1, 0, 0, 0)
    metrics.stream_opened("small")
    metrics.admitted("large", "m", "", 100, 0, 0, 0)
    assert value(metrics, "radixgate_gateway_open_streams", tenant="other") == 1
    metrics.stream_closed("small")
    assert value(metrics, "radixgate_gateway_open_streams", tenant="other") is None


def test_a_lost_worker_shows() -> None:
    metrics = GatewayMetrics()
    metrics.worker_connected("h:1")
    assert value(metrics, "radixgate_gateway_worker_connected", worker="h:1") == 1
    metrics.worker_lost("h:1")
    assert value(metrics, "radixgate_gateway_worker_connected", worker="h:1") == 0
    assert value(metrics, "radixgate_gateway_worker_losses_total", worker="h:1") == 1


def test_refused_credentials_are_counted_by_reason() -> None:
    metrics = GatewayMetrics()
    metrics.auth_failed("revoked")
    assert value(metrics, "radixgate_gateway_auth_failures_total", reason="revoked") == 1


def test_gaps_and_first_messages_are_observed() -> None:
    metrics = GatewayMetrics()
    metrics.admitted("a", "m", "", 1, 0, 0, 0)
    metrics.first_message("a", "m", 0.25)
    metrics.next_message("a", "m", 0.125)
    first = value(metrics, "radixgate_gateway_time_to_first_token_seconds_sum", tenant="a", model="m")
    assert first == 0.25
    assert value(metrics, "radixgate_gateway_inter_message_seconds_sum", model="m") == 0.125


def test_adapters_of_a_tenant_are_told_apart() -> None:
    metrics = GatewayMetrics()
    metrics.admitted("a", "m", "poet", 10, 0, 0, 0)
    metrics.admitted("a", "m", "", 20, 0, 0, 0)
    name = "radixgate_gateway_prompt_tokens_total"
    assert value(metrics, name, tenant="a", model="m", adapter="poet") == 10
    assert value(metrics, name, tenant="a", model="m", adapter="") == 20


def test_a_thousand_tenants_with_adapters_keep_the_number_of_series_bounded() -> None:
    metrics = GatewayMetrics(max_tenants=5, max_adapters=5)
    for number in range(1000):
        tenant, adapter = f"tenant-{number}", f"adapter-{number}"
        metrics.admitted(tenant, "m", adapter, 1 + number % 97, 0, 0, 0)
        metrics.public_prefix_met(tenant, "m", adapter, 1, 0)
        metrics.stream_finished(tenant, "m", adapter, 1 + number % 97, 0.5)
        metrics.admitted("tenant-0", "m", adapter, 1, 0, 0, 0)
    for family in metrics.registry.collect():
        adapters = {sample.labels["adapter"] for sample in family.samples if "adapter" in sample.labels}
        assert len(adapters) <= 5 + len({"other"}), family.name


def test_what_shares_a_label_is_still_counted() -> None:
    metrics = GatewayMetrics(max_adapters=1)
    metrics.admitted("a", "m", "first", 10, 0, 0, 0)
    metrics.admitted("a", "m", "second", 1, 0, 0, 0)
    metrics.stream_finished("a", "m", "second", 3, 0.5)
    who = {"tenant": "a", "model": "m", "adapter": "other"}
    assert value(metrics, "radixgate_gateway_prompt_tokens_total", **who) == 1
    assert value(metrics, "radixgate_gateway_completion_tokens_total", **who) == 3


def test_decisions_about_quotas_are_counted_by_limit_and_who_decided() -> None:
    metrics = GatewayMetrics()
    for _ in range(2):
        metrics.quota_decided("a", "refused", "tokens_per_minute", "shared")
    metrics.quota_decided("a", "admitted", "", "local")
    name = "radixgate_gateway_quota_decisions_total"
    assert value(metrics, name, tenant="a", outcome="refused", limit="tokens_per_minute", by="shared") == 2
    assert value(metrics, name, tenant="a", outcome="admitted", limit="", by="local") == 1


def test_the_state_of_quotas_is_shown() -> None:
    metrics = GatewayMetrics()
    assert value(metrics, "radixgate_gateway_quota_store_current") == 1
    metrics.quota_store_current(False)
    metrics.quota_waiting(3)
    metrics.quota_waited(0.25)
    metrics.quota_backlog(7)
    assert value(metrics, "radixgate_gateway_quota_store_current") == 0
    assert value(metrics, "radixgate_gateway_queued_requests") == 3
    assert value(metrics, "radixgate_gateway_queue_seconds_sum") == 0.25
    assert value(metrics, "radixgate_gateway_unsettled_requests") == 7


def test_expectations_that_were_too_high_and_too_low_are_told_apart() -> None:
    metrics = GatewayMetrics()
    metrics.hit_predicted("w:1", 96, 32, 64)
    metrics.hit_predicted("w:1", 0, 40, -9)
    name = "radixgate_gateway_mispredicted_tokens_total"
    assert value(metrics, name, worker="w:1", direction="over") == 64
    assert value(metrics, name, worker="w:1", direction="under") == 9
    assert value(metrics, "radixgate_gateway_predicted_cached_tokens_total", worker="w:1") == 96
    assert value(metrics, "radixgate_gateway_delivered_cached_tokens_total", worker="w:1") == 72


def test_expectations_are_counted_as_right_over_and_under() -> None:
    metrics = GatewayMetrics()
    for error in (0, 0, 64, -64):
        metrics.hit_predicted("h:1", 128, 128 - error, error)
    counted = {
        outcome: value(metrics, "radixgate_gateway_predictions_total", worker="h:1", outcome=outcome)
        for outcome in ("right", "over", "under")
    }
    assert counted == {"right": 2, "over": 1, "under": 1}


def test_what_is_known_of_a_workers_cache_shows() -> None:
    metrics = GatewayMetrics()
    metrics.cache_pages_known("h:1", 5, 7)
    metrics.cache_digest_compared("h:1", False)
    metrics.index(lambda: 12)
    assert value(metrics, "radixgate_gateway_index_pages", worker="h:1", tier="device") == 5
    assert value(metrics, "radixgate_gateway_index_pages", worker="h:1", tier="host") == 7
    assert value(metrics, "radixgate_gateway_cache_digests_total", worker="h:1", outcome="differs") == 1
    assert value(metrics, "radixgate_gateway_index_size") == 12
