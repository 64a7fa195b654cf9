"""Keys: who a request belongs to (extra key, namespace), which tokens it has (segments), and what its pages are called.

Knows hashing and numpy, nothing of trees or tiers: gateways import this module alone, so that the routing index and the
cache cannot disagree about a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hicache.errors import InvalidKeyError

Int32Array = NDArray[np.int32]
TokenIds = Int32Array | Sequence[int]

# One part of a key that was cut to whole pages: namespace, packed tokens, number of bytes of them that count.
Part = tuple["Namespace", bytes, int]

EXTRA_KEY_BYTES: Final = 16
PAGE_HASH_BYTES: Final = 16
TOKEN_BYTES: Final = 4
TOKEN_DTYPE: Final = np.dtype("<i4")  # fixed byte order: packed tokens are hashed and compared as bytes
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 64

_EXTRA_KEY_TAG: Final = b"radixgate.extra-key"
_EXTRA_KEY_FORMAT: Final = 1
_MAX_CACHE_VERSION: Final = 2**64 - 1
_HASH_START: Final = b"radixgate.start"
_HASH_SEGMENT: Final = b"radixgate.segm"
_HASH_PAGE: Final = b"radixgate.page"


@dataclass(frozen=True, slots=True)
class ExtraKey:
    """Whose KV it is. Two extra keys that differ in any field never share an entry.

    `tenant` comes from authentication, `adapter_revision` is the digest of the adapter's weights and config, `scope` is
    the client's own narrowing inside its tenant. Text is compared as its UTF-8 bytes, without normalisation.
    """

    tenant: str
    adapter: str = ""
    adapter_revision: str = ""
    cache_version: int = 0
    scope: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.cache_version <= _MAX_CACHE_VERSION:
            raise InvalidKeyError(f"cache_version must be in 0..{_MAX_CACHE_VERSION}, got {self.cache_version}")

    def encode(self) -> bytes:
        """Return the injective encoding: domain tag, format version, then every field behind its own length."""
        fields = (
            _utf8("tenant", self.tenant),
            _utf8("adapter", self.adapter),
            _utf8("adapter_revision", self.adapter_revision),
            self.cache_version.to_bytes(8, "little"),
            _utf8("scope", self.scope),
        )
        header = _EXTRA_KEY_TAG + _EXTRA_KEY_FORMAT.to_bytes(2, "little")
        # Length first: ("a", "bc") and ("ab", "c") must not meet.
        return header + b"".join(len(encoded).to_bytes(4, "little") + encoded for encoded in fields)

    def digest(self, secret: bytes) -> bytes:
        """Return the 16 bytes that travel: BLAKE2b keyed with the deployment's secret, so that nobody can guess one."""
        if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
            raise InvalidKeyError(
                f"the extra key secret must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, got {len(secret)}"
            )
        return blake2b(self.encode(), digest_size=EXTRA_KEY_BYTES, key=secret).digest()


@dataclass(frozen=True, slots=True)
class Namespace:
    """What separates trees: the extra key's digest, and the revision of the adapter actually applied ("" is the base).

    The second field is the worker's own knowledge: even a wrong tag cannot mix KV of different weights.
    """

    extra_key: bytes
    adapter_revision: str = ""

    def __post_init__(self) -> None:
        if type(self.extra_key) is not bytes or len(self.extra_key) != EXTRA_KEY_BYTES:
            raise InvalidKeyError(f"extra_key must be {EXTRA_KEY_BYTES} bytes, got {_describe(self.extra_key)}")

    def __hash__(self) -> int:
        # Looked up for every request: the digest tells almost all apart, and bytes remember their hash.
        return hash(self.extra_key)

    def encode(self) -> bytes:
        """Return an injective encoding: the digest has a fixed length, so the revision needs none."""
        return self.extra_key + _utf8("adapter_revision", self.adapter_revision)


@dataclass(frozen=True, slots=True, init=False)
class Segment:
    """A run of tokens that lives in one namespace. Keeps its own frozen copy of the tokens."""

    namespace: Namespace
    packed: bytes = field(repr=False)  # int32[num_tokens], little endian

    def __init__(self, namespace: Namespace, token_ids: TokenIds) -> None:
        object.__setattr__(self, "namespace", namespace)
        object.__setattr__(self, "packed", pack_tokens(token_ids))

    def __len__(self) -> int:
        return len(self.packed) // TOKEN_BYTES

    @property
    def token_ids(self) -> Int32Array:
        """int32[num_tokens], read-only."""
        return np.frombuffer(self.packed, dtype=TOKEN_DTYPE)


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What a request asks the cache for: one segment, or a public prefix's segment and the tenant's own behind it."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments:
            raise InvalidKeyError("a prefix key needs at least one segment")
        if len(self.segments) > 1 and len(set(self.namespaces)) < len(self.segments):
            raise InvalidKeyError("the segments of a prefix key must have different namespaces")

    @classmethod
    def of(cls, namespace: Namespace, token_ids: TokenIds) -> "PrefixKey":
        return cls((Segment(namespace, token_ids),))

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        if len(self.segments) == 1:
            return (self.segments[0].namespace,)
        return tuple([segment.namespace for segment in self.segments])

    @property
    def token_ids(self) -> Int32Array:
        """int32[len(self)], read-only: the tokens of all segments in order."""
        return np.frombuffer(b"".join(segment.packed for segment in self.segments), dtype=TOKEN_DTYPE)

    def prefix(self, num_tokens: int) -> "PrefixKey":
        """Return the key of the first `num_tokens` tokens, in the same namespaces."""
        if not 0 <= num_tokens <= len(self):
            raise InvalidKeyError(f"num_tokens must be in 0..{len(self)}, got {num_tokens}")
        kept: list[Segment] = []
        for segment in self.segments:
            kept.append(_segment_of(segment.namespace, segment.packed[: num_tokens * TOKEN_BYTES]))
            num_tokens -= min(num_tokens, len(segment))
        return PrefixKey(tuple(kept))

    def extend(self, token_ids: TokenIds) -> "PrefixKey":
        """Return this key with `token_ids` appended to its last segment."""
        last = self.segments[-1]
        return PrefixKey((*self.segments[:-1], _segment_of(last.namespace, last.packed + pack_tokens(token_ids))))

    def parts(self, page_size: int) -> tuple[Part, ...]:
        """Cut to whole pages: what of this key lies in which namespace. Parts without a page are left out.

        A page that straddles a barrier belongs to the segment behind it, the narrower one:

            page size 4   public  0 1 2 3 | 4 5        tenant  6 7 8 9 10
            parts         public  0 1 2 3              tenant  4 5 6 7 | (8 9 10 fill no page)
        """
        page_bytes = page_size * TOKEN_BYTES
        if len(self.segments) == 1:
            (segment,) = self.segments
            packed = segment.packed
            num_bytes = len(packed) // page_bytes * page_bytes
            return ((segment.namespace, packed, num_bytes),) if num_bytes else ()
        parts: list[Part] = []
        carried = b""
        for segment in self.segments:
            packed = carried + segment.packed if carried else segment.packed
            num_bytes = len(packed) // page_bytes * page_bytes
            if num_bytes:
                parts.append((segment.namespace, packed, num_bytes))
            carried = packed[num_bytes:]
        return tuple(parts)


def page_hashes(key: PrefixKey, page_size: int, seed: bytes) -> list[bytes]:
    """Return the names of the key's whole pages, 16 bytes each, in order.

    Each name stands for everything before it: `seed` (model identity, dtype, layout, deployment secret: whatever must
    not meet), the page size, the namespace of every segment so far, and all tokens up to the end of the page.
    """
    name = first_name(page_size, seed)
    page_bytes = page_size * TOKEN_BYTES
    names: list[bytes] = []
    for namespace, packed, num_bytes in key.parts(page_size):
        name = segment_name(name, namespace)
        for start in range(0, num_bytes, page_bytes):
            name = page_name(name, packed[start : start + page_bytes])
            names.append(name)
    return names


def first_name(page_size: int, seed: bytes) -> bytes:
    """Return what the chain of page names starts from."""
    return _chain(_HASH_START, page_size.to_bytes(4, "little"), seed)


def segment_name(before: bytes, namespace: Namespace) -> bytes:
    """Return what the first page of a segment chains to, behind the name `before`."""
    return _chain(_HASH_SEGMENT, before, namespace.encode())


def page_name(before: bytes, packed: bytes) -> bytes:
    """Return the name of the page with these packed tokens, behind the name `before`."""
    return _chain(_HASH_PAGE, before, packed)


def pack_tokens(token_ids: TokenIds) -> bytes:
    """Return the tokens as little-endian int32 bytes, a copy that no caller can change."""
    array = np.asarray(token_ids)
    if array.dtype != TOKEN_DTYPE:
        if array.size and array.dtype.kind not in "iu":
            raise InvalidKeyError(f"token_ids must be integers, got {array.dtype}")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**31:
            raise InvalidKeyError("token_ids must be in 0..2147483647")
        array = array.astype(TOKEN_DTYPE)
    if array.ndim != 1:
        raise InvalidKeyError(f"token_ids must have one dimension, got {array.ndim}")
    return array.tobytes()


def _segment_of(namespace: Namespace, packed: bytes) -> Segment:
    """Build a segment around bytes that are packed already."""
    segment = object.__new__(Segment)
    object.__setattr__(segment, "namespace", namespace)
    object.__setattr__(segment, "packed", packed)
    return segment


def _chain(domain: bytes, head: bytes, tail: bytes) -> bytes:
    # `head` has a fixed length within each domain, so the concatenation is injective.
    return blake2b(head + tail, digest_size=PAGE_HASH_BYTES, person=domain).digest()


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"{name} is not valid Unicode text: {error.reason}") from error


def _describe(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
