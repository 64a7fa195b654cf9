"""Tenants by bearer tokens of an identity provider: JSON Web Tokens (RFC 7519), signed with a key of its set.

A token holds until it expires, and a stream that it began runs to its own end: there is no list of revoked tokens. Who
must be kept out at once is suspended as a tenant, or has its key taken out of the set.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from jwt.types import Options

from gateway.config import JwtConfig
from gateway.errors import UnauthenticatedError, UnavailableError
from gateway.identity.authenticator import bearer_token
from gateway.identity.callers import Caller, Credentials
from gateway.identity.named_tenants import NamedTenants, Refused, label
from gateway.identity.signing_keys import SigningKey

# Longer ones are refused unread: providers stay far below it, and gRPC's own bound on metadata is near.
MAX_TOKEN_CHARS = 16_384


class AuthObserver(Protocol):
    def auth_failed(self, reason: str) -> None: ...


class Keys(Protocol):
    """The provider's keys."""

    @property
    def known(self) -> bool:
        """Whether there ever were any."""
        ...

    async def find(self, kid: str | None, algorithm: str) -> Sequence[SigningKey]:
        """Return the keys that may have signed a token whose header names `kid` and `algorithm`."""
        ...


class TokenError(Exception):
    """A token that does not count. `reason` is one of a few words, for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says of its bearer."""

    tenant_id: str
    subject: str
    models: frozenset[str]  # none named: all of the tenant
    adapters: frozenset[str]


def is_token(text: str) -> bool:
    """Whether `text` has the form of a signed token. API keys have no dots."""
    return text.count(".") == 2


def header_of(token: str, config: JwtConfig) -> tuple[str | None, str]:
    """Return the key's id and the algorithm that a token names, which nobody has vouched for. Raises TokenError."""
    if len(token) > MAX_TOKEN_CHARS:
        raise TokenError("token_malformed")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise TokenError("token_malformed") from error
    kid, algorithm = header.get("kid"), header.get("alg")
    if algorithm not in config.algorithms:
        raise TokenError("token_algorithm")
    if "crit" in header:  # something that must be understood, and is not
        raise TokenError("token_malformed")
    return (kid if isinstance(kid, str) else None), algorithm


def claims_of(token: str, keys: Sequence[SigningKey], algorithm: str, config: JwtConfig, now: float) -> Claims:
    """Return what a token says, if one of `keys` signed it and it counts at `now`. Raises TokenError."""
    reason = "token_key"
    for key in keys:
        try:
            payload = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                issuer=config.issuer,
                audience=config.audience,
                options=_OPTIONS,
            )
        except jwt.InvalidSignatureError:
            reason = "token_signature"
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise TokenError(_reason_of(error)) from error
        else:
            _check_times(payload, now, config.leeway_s)
            return _claims(payload, config)
    raise TokenError(reason)


# Times are checked here, with the clock that is passed in; the rest is nobody's business.
_OPTIONS: Options = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
}
_REASONS: Mapping[type[Exception], str] = {
    jwt.InvalidAudienceError: "token_audience",
    jwt.InvalidIssuerError: "token_issuer",
    jwt.MissingRequiredClaimError: "token_claims",
}


def _reason_of(error: Exception) -> str:
    return next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "token_malformed")


def _check_times(payload: Mapping[str, Any], now: float, leeway_s: float) -> None:
    expires_at, starts_at = payload["exp"], payload.get("nbf", -math.inf)
    if not (_is_time(expires_at) and _is_time(starts_at)):
        raise TokenError("token_claims")
    if expires_at <= now - leeway_s:
        raise TokenError("token_expired")
    if starts_at > now + leeway_s:
        raise TokenError("token_not_yet_valid")


def _is_time(value: object) -> bool:
    """Whether `value` is a number: integers of any size, which need not fit a float, and nothing that is NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124


def _claims(payload: Mapping[str, Any], config: JwtConfig) -> Claims:
    tenant_id, subject = _claim(payload, config.tenant_claim), payload.get("sub")
    if not isinstance(tenant_id, str):
        raise TokenError("token_claims")
    return Claims(
        tenant_id,
        subject if isinstance(subject, str) else "",
        _names(payload, config.models_claim),
        _names(payload, config.adapters_claim),
    )


def _names(payload: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return what a claim allows. One that is there and allows nothing, or isn't a list, must not come to mean all."""
    names = _claim(payload, path, default=_ABSENT)
    if names is _ABSENT:
        return frozenset()
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise TokenError("token_claims")
    return frozenset(names)


_ABSENT = object()


def _claim(claims: Mapping[str, Any], path: str, default: object = None) -> object:
    """Return a claim of exactly that name (many are URIs, with dots of their own), else what its dots lead to."""
    if path in claims:
        return claims[path]
    at: object = claims
    for name in path.split("."):
        if not isinstance(at, dict) or name not in at:
            return default
        at = at[name]
    return at


class TokenAuthenticator:
    """Recognises tenants by tokens. The provider is believed about all tenants; the tenant must exist here."""

    def __init__(
        self,
        config: JwtConfig,
        keys: Keys,
        named: NamedTenants,
        observer: AuthObserver,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._keys = keys
        self._named = named
        self._observer = observer
        self._clock = clock

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        """Raises UnauthenticatedError, with one answer whatever is wrong; PermissionDeniedError for a tenant that is
        suspended; UnavailableError while there never were keys to verify with, or when the store is away and the
        tenant is not known here.
        """
        try:
            claims = await self._verified(bearer_token(credentials.authorization) or "")
            return await self._named.caller(
                claims.tenant_id, label("token", claims.subject), arrived_at, claims.models, claims.adapters
            )
        except TokenError as error:
            raise self._refused(error.reason) from None
        except Refused:
            raise self._refused("token_tenant") from None

    async def _verified(self, token: str) -> Claims:
        kid, algorithm = header_of(token, self._config)
        keys = await self._keys.find(kid, algorithm)
        if not self._keys.known:
            raise UnavailableError(
                "the identity provider's keys cannot be had", reason="TOKEN_KEYS_UNAVAILABLE", retry_after_s=1.0
            )
        return claims_of(token, keys, algorithm, self._config, self._clock())

    def _refused(self, reason: str) -> UnauthenticatedError:
        self._observer.auth_failed(reason)
        return UnauthenticatedError("the token is not valid here, or no longer")
