"""From a URL to a store. Knows which schemes there are; loads the code of the one that is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from hicache.storage.file_store import FileStore, folder_identity
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageStore, StoreConfigError


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """`max_bytes` bounds what all workers store together; the other two are for stores behind a network."""

    max_bytes: int = 16 << 30
    ttl_s: float = 86_400.0  # a page that nobody used for so long is gone
    timeout_s: float = 2.0  # for connecting, and for each answer


Factory = Callable[[str, StoreLimits], PageStore]


def open_store(url: str, limits: StoreLimits | None = None) -> PageStore:
    """Open the store that `url` names: file:///folder, redis://host:port/0, rediss://…, memory://.

    A server is not asked yet: one that is away now is found when it is back. Raises StoreConfigError, which never
    repeats the URL: there may be a password in it.
    """
    scheme = url.partition(":")[0].lower()
    factory = SCHEMES.get(scheme) if "://" in url else None
    if factory is None:
        there_are = ", ".join(f"{known}://" for known in sorted(SCHEMES))
        raise StoreConfigError(f"storage.url must begin with one of {there_are}")
    return factory(url, limits or StoreLimits())


def identity_of(url: str) -> str:
    """Return what all that share the store of a URL know it by, without credentials; "" where nobody can share it.

    The store has been opened before: in a folder lies a file that says it, made by who came first.
    """
    parts = _split(url)
    match parts.scheme.lower():
        case "file":
            return f"folder {folder_identity(unquote(parts.path))}"
        case "memory":
            return ""
        case scheme if scheme.startswith("redis"):
            return f"redis {parts.hostname}:{parts.port or 6379}/{int(parts.path.strip('/') or 0)}"
        case scheme:
            return f"{scheme} {parts.hostname}:{parts.port}{parts.path}"


def _open_file(url: str, limits: StoreLimits) -> PageStore:
    parts = _split(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or parts.query or parts.fragment:
        raise StoreConfigError("storage.url must look like file:///folder, with three slashes and a full path")
    if "\0" in path:
        raise StoreConfigError("storage.url must name a folder without zero bytes")
    return FileStore(path, limits.max_bytes)


def _open_memory(url: str, limits: StoreLimits) -> PageStore:
    if url.partition("://")[2]:
        raise StoreConfigError("storage.url must be just memory://: there is nothing to choose")
    return MemoryStore(limits.max_bytes)


def _open_redis(url: str, limits: StoreLimits) -> PageStore:
    parts = _split(url)
    database = parts.path.strip("/")
    if not parts.hostname or (database and not database.isdecimal()):
        raise StoreConfigError(f"storage.url must look like {parts.scheme}://host:port/0")
    try:
        # Found when asked for: the redis client is not there for who stores in files.
        redis_store = resolve_name("hicache.storage.redis_store:RedisStore")
    except ImportError as error:
        raise StoreConfigError(f"storage.url asks for Redis, which needs the Python package redis: {error}") from None
    store: PageStore = redis_store(url, ttl_s=limits.ttl_s, max_bytes=limits.max_bytes, timeout_s=limits.timeout_s)
    return store


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is no number
    except ValueError:
        # Not the error's own words: they repeat parts of the URL.
        raise StoreConfigError("storage.url is malformed: look at its host and port") from None
    return parts


# Others may add theirs.
SCHEMES: Final[dict[str, Factory]] = {
    "file": _open_file,
    "memory": _open_memory,
    "redis": _open_redis,
    "rediss": _open_redis,
}
