"""The configuration's bounds hold when pydantic reads it, as the command line does."""

from dataclasses import asdict
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.config import GatewayConfig

ADAPTER = TypeAdapter(GatewayConfig)


def test_defaults_are_valid() -> None:
    assert ADAPTER.validate_python(asdict(GatewayConfig())) == GatewayConfig()


@pytest.mark.parametrize(
    "bad",
    [
        {"listen": "nowhere"},
        {"listen": ":80"},
        {"listen": "host:port"},
        {"listen": "host:70000"},
        {"workers": ["host"]},
        {"admin_token": "short"},
        {"extra_key_secret": "short"},
        {"extra_key_secret": "ü" * 40},
        {"limits": {"max_message_bytes": 1}},
        {"limits": {"max_unread_bytes": 0}},
        {"server": {"default_deadline_s": 0}},
        {"server": {"drain_s": -1}},
        {"worker_link": {"backoff_initial_s": 0}},
        {"redis": {"timeout_s": 0}},
    ],
)
def test_values_out_of_bounds_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(bad)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::]:50051", "gateway.example:443"])
def test_addresses_have_a_host_and_a_port(listen: str) -> None:
    assert ADAPTER.validate_python({"listen": listen}).listen == listen


ONE, OTHER = "one-long-admin-token", "other-long-admin-token"


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"operators": {"a": ONE, "b": ONE}}, "same token"),
        ({"admin_token": ONE, "operators": {"a": ONE}}, "same token"),
        ({"admin_token": ONE, "operators": {"admin": OTHER}}, 'operators."admin"'),
        ({"operators": {"": ONE}}, "1 to 64 printable characters"),
        ({"operators": {"a\nb": ONE}}, "1 to 64 printable characters"),
        ({"operators": {"a": "short"}}, "at least 16"),
    ],
)
def test_operators_are_told_apart_by_name_and_token(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ADAPTER.validate_python(bad)
    good = {"admin_token": ONE, "operators": {"night-shift": OTHER}}
    assert ADAPTER.validate_python(good).operators == {"night-shift": OTHER}


JWT = {"issuer": "https://issuer.example", "audience": "radixgate"}


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"tls": {"cert_file": "c.pem"}}, "belong together"),
        ({"tls": {"client_ca_file": "ca.pem"}}, "needs tls.cert_file"),
        ({"tls": {"cert_file": "c", "key_file": "k", "client_tenants": {"a": "b"}}}, "need tls.client_ca_file"),
        (
            {"tls": {"cert_file": "c", "key_file": "k", "client_ca_file": "a", "client_tenant_prefix": ""}},
            "any certificate would name any tenant",
        ),
        ({"jwt": {"jwks_file": "k.json", "jwks_url": "https://issuer.example/keys", **JWT}}, "set one of them"),
        ({"jwt": {"jwks_file": "k.json", "issuer": "i"}}, "are required"),
        ({"jwt": {"jwks_file": "k.json", "algorithms": ["HS256"], **JWT}}, "RS256"),
        ({"jwt": {"jwks_file": "k.json", "algorithms": ["none"], **JWT}}, "RS256"),
        ({"jwt": {"jwks_file": "k.json", "algorithms": [], **JWT}}, "at least 1"),
        *[
            ({"jwt": {"jwks_url": url, **JWT}}, "https://")
            for url in ("http://issuer.example/keys", "ftp://127.0.0.1/k", "file:///keys", "keys", "https://", "//[")
        ],
        ({"worker_link": {"tls": {"server_name": "workers"}}}, "need worker_link.tls.ca_file"),
    ],
)
def test_trust_that_would_not_hold_is_refused_by_name(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ADAPTER.validate_python(bad)


@pytest.mark.parametrize("url", ["https://issuer.example/keys", "http://127.0.0.1:8080/k", "http://[::1]/k"])
def test_keys_come_from_where_nobody_can_answer_in_between(url: str) -> None:
    assert ADAPTER.validate_python({"jwt": {"jwks_url": url, **JWT}}).jwt.enabled
