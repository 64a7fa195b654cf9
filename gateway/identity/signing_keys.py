"""The public keys that tokens are verified with: a JSON Web Key Set (RFC 7517), and keys out of it by name.

Pure: takes a document, returns keys. `key_ring` says where documents come from.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

# What of a key is public. Nothing else of it is looked at: a private key in the set stays unread.
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
# What a key must be for an algorithm (RFC 7518, RFC 8037): its type, and its curve where there are several.
_FITTING = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", ("",))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
_MIN_RSA_BITS = 2048
_MAX_KEYS = 256


@dataclass(frozen=True, slots=True)
class SigningKey:
    kid: str | None
    algorithms: frozenset[str]  # that it may verify
    public: Any = None  # cryptography's


class KeySet:
    """The usable keys of one document."""

    def __init__(self, keys: Sequence[SigningKey] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def candidates(self, kid: str | None, algorithm: str) -> Sequence[SigningKey]:
        """Return the keys that may have signed. A token that names no key has one only if nothing is to choose."""
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if kid is None:
            return fitting if len(fitting) == 1 else ()
        return [key for key in fitting if key.kid == kid]


def parse_keys(document: bytes, algorithms: Sequence[str]) -> KeySet:
    """Return the keys of a set that can verify one of `algorithms`; what else is in it does not matter.

    Raises ValueError for what is no JSON Web Key Set.
    """
    try:
        parsed = json.loads(document)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    keys = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(keys, list):
        raise ValueError('not a JSON Web Key Set: there is no list "keys"')  # noqa: TRY004 - the document is wrong
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"more than {_MAX_KEYS} keys")
    usable = (_usable(key, algorithms) for key in keys if isinstance(key, dict))
    return KeySet([key for key in usable if key is not None])


def _usable(key: Mapping[str, Any], algorithms: Sequence[str]) -> SigningKey | None:
    """Return a key, or None for one that may not verify signatures, or with none of `algorithms`.

    Symmetric keys (`oct`) fit no algorithm: who could verify with them could sign.
    """
    fitting = frozenset(algorithm for algorithm in algorithms if _allows(key, algorithm))
    kid, kind = key.get("kid"), key.get("kty")
    if not fitting or not isinstance(kind, str) or not isinstance(kid, str | None):
        return None
    members = {name: key.get(name) for name in _PUBLIC[kind]}
    try:
        public = jwt.PyJWK.from_dict({"kty": kind, **members}, algorithm=min(fitting)).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, OverflowError):
        return None
    if kind == "RSA" and public.key_size < _MIN_RSA_BITS:
        return None
    return SigningKey(kid, fitting, public)


def _allows(key: Mapping[str, Any], algorithm: str) -> bool:
    kind, curves = _FITTING[algorithm]
    operations = key.get("key_ops")
    return (
        key.get("kty") == kind
        and key.get("crv", "") in curves
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )
