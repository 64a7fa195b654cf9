"""The public prefixes of the deployment: kept in Redis, known to every gateway. Raises GatewayError."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from redis.asyncio import Redis

from gateway.control.adapters import HEARD_S
from gateway.control.directory import RegisteredAdapters
from gateway.control.prefix_index import PrefixIndex, RegisteredPrefix
from gateway.control.purges import Purge, Purges
from gateway.control.shelf import Shelf, Shelved
from gateway.control.undertakings import Undertakings
from gateway.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, UnavailableError
from gateway.identity.adapters import Adapter
from gateway.identity.extra_keys import ExtraKeys
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from gateway.serving.ports import PublicPrefix
from hicache.keys import Namespace, pack_tokens

_log = structlog.get_logger(__name__)

MAX_PREFIXES: Final = 1000
MAX_PREFIX_TOKENS: Final = 2_000_000  # of all together
_MAX_ATTEMPTS: Final = 20

_NEXT_VERSION = """
local version = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
redis.call('SET', KEYS[1], string.format('%.0f', version))
return version
"""


class PrefixShelf:
    """Implements PublicPrefixes from what the shelf held when it was last read."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._reach = reach
        self._shelf = Shelf(client, reach, "prefixes")
        self._next_version = client.register_script(_NEXT_VERSION)
        self._shelved: Shelved | None = None
        self._prefixes: dict[str, RegisteredPrefix] = {}
        self._index = PrefixIndex()

    def longest(self, model: str, adapter: str, token_ids: Sequence[int]) -> PublicPrefix | None:
        return self._index.longest(model, adapter, token_ids)

    async def refresh(self) -> None:
        """Read again what has changed. Raises UnavailableError, and what was known is kept."""
        shelved = await self._shelf.read()
        if shelved is self._shelved:
            return
        self._prefixes = {prefix_id: _read(prefix_id, text) for prefix_id, text in shelved.documents.items()}
        self._index = PrefixIndex(self._prefixes.values())
        self._shelved = shelved

    async def all(self) -> list[RegisteredPrefix]:
        """Return all prefixes, by id."""
        await self.refresh()
        return [self._prefixes[prefix_id] for prefix_id in sorted(self._prefixes)]

    async def version(self, now: float) -> int:
        """Return a version larger than any before, even should Redis have lost those."""
        args = [int(now * 1000)]
        return int(await self._reach.call(lambda: self._next_version(keys=[PREFIX + "prefix-version"], args=args)))

    async def add(self, prefix: RegisteredPrefix) -> None:
        """Raises AlreadyExistsError for an id, or tokens, that there are already, FailedPreconditionError."""
        for _ in range(_MAX_ATTEMPTS):
            await self.refresh()
            self._refuse(prefix)
            if await self._shelf.write(self._shelved or Shelved(), {prefix.prefix_id: _written(prefix)}):
                await self.refresh()
                return
        raise _contended()

    async def remove(self, prefix_id: str) -> RegisteredPrefix:
        """Raises NotFoundError."""
        for _ in range(_MAX_ATTEMPTS):
            await self.refresh()
            prefix = self._prefixes.get(prefix_id)
            if prefix is None:
                raise NotFoundError("prefix", prefix_id)
            if await self._shelf.write(self._shelved or Shelved(), {prefix_id: None}):
                await self.refresh()
                return prefix
        raise _contended()

    def _refuse(self, prefix: RegisteredPrefix) -> None:
        if prefix.prefix_id in self._prefixes:
            raise AlreadyExistsError(f"public prefix {prefix.prefix_id!r} exists already")
        of, num_tokens = (prefix.model, prefix.adapter, prefix.packed), prefix.num_tokens
        for each in self._prefixes.values():
            num_tokens += each.num_tokens
            if (each.model, each.adapter, each.packed) == of:
                raise AlreadyExistsError(f"public prefix {each.prefix_id!r} has the same tokens already")
        if len(self._prefixes) >= MAX_PREFIXES:
            raise FailedPreconditionError(
                f"there are {len(self._prefixes)} public prefixes; at most {MAX_PREFIXES} are possible",
                reason="TOO_MANY_PREFIXES",
            )
        if num_tokens > MAX_PREFIX_TOKENS:
            raise FailedPreconditionError(
                f"all public prefixes together would have {num_tokens} tokens; at most {MAX_PREFIX_TOKENS} can be",
                reason="TOO_MANY_PREFIX_TOKENS",
            )


class PrefixControl:
    """What operators do with public prefixes."""

    def __init__(
        self,
        prefixes: PrefixShelf,
        adapters: RegisteredAdapters,
        extra_keys: ExtraKeys,
        purges: Purges,
        undertakings: Undertakings,
    ) -> None:
        self._prefixes = prefixes
        self._adapters = adapters
        self._extra_keys = extra_keys
        self._purges = purges
        self._undertakings = undertakings

    async def all(self) -> list[RegisteredPrefix]:
        return await self._prefixes.all()

    async def create(
        self, prefix_id: str, display_name: str, model: str, adapter: str, token_ids: Sequence[int]
    ) -> RegisteredPrefix:
        """Raises NotFoundError for an adapter that not all tenants may use, and like PrefixShelf.add."""
        if adapter and not await self._adapters.is_for_all(model, adapter):
            raise NotFoundError("adapter", adapter)
        now = time.time()
        version = await self._prefixes.version(now)
        prefix = RegisteredPrefix(
            prefix_id, display_name, model, adapter, version, pack_tokens(list(token_ids)), round(now, 3)
        )
        await self._prefixes.add(prefix)
        _log.info("public prefix created", prefix=prefix_id, model=model, adapter=adapter, tokens=prefix.num_tokens)
        return prefix

    async def delete(self, prefix_id: str) -> Purge:
        """Make a prefix unreachable, and purge what it has cached. Raises NotFoundError."""
        prefix = await self._prefixes.remove(prefix_id)
        _log.info("public prefix deleted", prefix=prefix_id, model=prefix.model, adapter=prefix.adapter)
        return await self._undertakings.to_its_end(self._purge(prefix))

    async def _purge(self, prefix: RegisteredPrefix) -> Purge:
        await asyncio.sleep(HEARD_S)  # or some gateway would let tenants fill it again behind the purge
        revisions = self._adapters.revisions(prefix.model, prefix.adapter) if prefix.adapter else {""}
        namespaces = []
        for revision in sorted(revisions):
            adapter = Adapter(prefix.adapter, revision) if prefix.adapter else None
            extra_key = await self._extra_keys.of_public_prefix(prefix.prefix_id, prefix.version, adapter)
            namespaces.append(Namespace(extra_key, revision))
        return await self._purges.purge(namespaces)


def _contended() -> UnavailableError:
    return UnavailableError("other operators are changing public prefixes at the same time", retry_after_s=1.0)


def _written(prefix: RegisteredPrefix) -> str:
    return json.dumps(
        {
            "display_name": prefix.display_name,
            "model": prefix.model,
            "adapter": prefix.adapter,
            "version": prefix.version,
            "tokens": base64.b64encode(prefix.packed).decode(),
            "created_at": prefix.created_at,
        }
    )


def _read(prefix_id: str, text: str) -> RegisteredPrefix:
    document: dict[str, Any] = json.loads(text)
    return RegisteredPrefix(
        prefix_id,
        document["display_name"],
        document["model"],
        document["adapter"],
        document["version"],
        base64.b64decode(document["tokens"]),
        document["created_at"],
    )
