"""Which keys of a set may verify which tokens."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from gateway.identity.signing_keys import parse_keys
from tests.fakes.identity_provider import key_set, private_key, public_jwk

ALL = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA")


def usable(algorithm: str, *keys: dict[str, Any]) -> int:
    return len(parse_keys(key_set(*keys), ALL).candidates("k", algorithm))


@pytest.mark.parametrize("algorithm", ALL)
def test_a_key_verifies_the_algorithms_of_its_type_and_curve(algorithm: str) -> None:
    key = public_jwk(private_key(algorithm), kid="k")
    may = {other for other in ALL if usable(other, key)}
    assert may == ({"RS256", "PS256"} if algorithm in {"RS256", "PS256"} else {algorithm})


@pytest.mark.parametrize(
    "members",
    [
        {"use": "enc"},
        {"use": None},
        {"key_ops": ["sign"]},
        {"key_ops": []},
        {"key_ops": "verify"},
        {"alg": "RS512"},
        {"alg": "RSA-OAEP"},
        {"alg": None},
        {"kty": "EC"},
        {"kty": ["RSA"]},
        {"kid": 7},
        {"n": 7},
        {"n": "!"},
        {"e": ""},
    ],
    ids=str,
)
def test_a_key_for_other_purposes_or_that_is_broken_is_left_out(members: dict[str, Any]) -> None:
    good = public_jwk(private_key("RS256"), kid="k")
    assert usable("RS256", good) == 1
    assert usable("RS256", {**good, **members}) == 0


@pytest.mark.parametrize("members", [{"use": "sig"}, {"key_ops": ["verify"]}, {"alg": "RS256"}, {"x5t": "?"}], ids=str)
def test_a_key_that_says_it_is_for_this_is_taken(members: dict[str, Any]) -> None:
    assert usable("RS256", public_jwk(private_key("RS256"), kid="k", **members)) == 1


def test_a_keys_own_algorithm_is_the_only_one() -> None:
    key = public_jwk(private_key("RS256"), kid="k", alg="PS256")
    assert (usable("RS256", key), usable("PS256", key)) == (0, 1)


def test_symmetric_keys_are_never_taken() -> None:
    for algorithm in ("HS256", "RS256", None):
        assert len(parse_keys(key_set({"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": algorithm}), ALL)) == 0


def test_keys_that_are_too_short_are_left_out() -> None:
    assert usable("RS256", public_jwk(rsa.generate_private_key(65537, 1024), kid="k")) == 0


def test_of_a_private_key_in_the_set_nothing_but_its_public_half_is_kept() -> None:
    private = json.loads(RSAAlgorithm.to_jwk(private_key("RS256"))) | {"kid": "k"}
    del private["key_ops"]
    (key,) = parse_keys(key_set(private), ALL).candidates("k", "RS256")
    assert isinstance(key.public, rsa.RSAPublicKey)


def test_without_a_kid_there_is_a_key_only_if_nothing_is_to_choose() -> None:
    one, two = (public_jwk(private_key("ES256", name), kid=name) for name in ("one", "two"))
    other = public_jwk(private_key("RS256"), kid="rsa")
    assert len(parse_keys(key_set(one, other), ALL).candidates(None, "ES256")) == 1
    assert len(parse_keys(key_set(one, two, other), ALL).candidates(None, "ES256")) == 0


def test_two_keys_of_one_name_are_both_candidates() -> None:
    one, two = (public_jwk(private_key("ES256", name), kid="k") for name in ("one", "two"))
    assert usable("ES256", one, two) == 2


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b'{"keys": ' + b"[" * 100_000, key_set(*[{}] * 257)],
    ids=["empty", "list", "no keys", "object", "bytes", "deep", "too many"],
)
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keys(document, ALL)


def test_entries_that_are_no_keys_do_not_matter() -> None:
    good = public_jwk(private_key("ES256"), kid="k")
    document = json.dumps({"keys": [7, None, [], {"kty": "EC", "crv": "P-256"}, good]}).encode()
    assert len(parse_keys(document, ALL)) == 1
