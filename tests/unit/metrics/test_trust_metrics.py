"""What is shown of certificates and of an identity provider's keys, and nothing where there are none."""

from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics

GATEWAY_EXPIRY = "radixgate_gateway_certificate_expiry_timestamp_seconds"


def test_a_gateway_without_tls_and_tokens_shows_no_time_and_no_number() -> None:
    metrics = GatewayMetrics()
    for name in (GATEWAY_EXPIRY, "radixgate_gateway_signing_keys"):
        assert metrics.registry.get_sample_value(name) is None


def test_a_gateway_shows_when_its_certificate_expires_and_how_reloads_went() -> None:
    metrics = GatewayMetrics()
    metrics.certificate_loaded(1.9e9)
    metrics.certificate_refused("mismatch")
    metrics.certificate_loaded(2.0e9)
    assert metrics.registry.get_sample_value(GATEWAY_EXPIRY) == 2.0e9
    loads = "radixgate_gateway_certificate_loads_total"
    assert metrics.registry.get_sample_value(loads, {"outcome": "ok"}) == 2
    assert metrics.registry.get_sample_value(loads, {"outcome": "mismatch"}) == 1


def test_a_gateway_shows_the_signing_keys_and_how_fetches_went() -> None:
    metrics = GatewayMetrics()
    metrics.signing_keys_loaded(3)
    metrics.signing_keys_failed("unreachable")
    assert metrics.registry.get_sample_value("radixgate_gateway_signing_keys") == 3
    fetches = "radixgate_gateway_signing_key_fetches_total"
    assert metrics.registry.get_sample_value(fetches, {"outcome": "ok"}) == 1
    assert metrics.registry.get_sample_value(fetches, {"outcome": "unreachable"}) == 1


def test_a_worker_shows_its_certificate_once_it_has_one() -> None:
    metrics = WorkerMetrics("w0")
    expiry, labels = "radixgate_certificate_expiry_timestamp_seconds", {"worker": "w0"}
    assert metrics.registry.get_sample_value(expiry, labels) is None
    metrics.certificate_loaded(1.9e9)
    metrics.certificate_refused("expired")
    assert metrics.registry.get_sample_value(expiry, labels) == 1.9e9
    assert metrics.registry.get_sample_value("radixgate_certificate_loads_total", {**labels, "outcome": "expired"}) == 1
