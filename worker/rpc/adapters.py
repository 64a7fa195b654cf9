"""The adapters that a worker has: by name and tenants, in one revision or in several side by side.

Belongs to the event loop. Folders are read one at a time on a thread; places on the device, and waiting for those who
use an adapter that goes, are the engine's. Knows no gRPC.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import structlog

from worker.config import LoraConfig
from worker.engine.departures import Gone, OnGone
from worker.lora.errors import AdapterError
from worker.lora.weights import AdapterWeights

_log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_MAX_TENANTS: Final = 1024
_NOTHING: Final = Gone(failed_sequences=0, dropped_tokens=0)

_Key = tuple[str, frozenset[str], str]  # name, tenants, revision


class AdapterReader(Protocol):
    """What the directory needs of the model's adapters."""

    def read(self, folder: Path) -> AdapterWeights: ...

    def add(self, weights: AdapterWeights) -> None: ...


class AdapterEngine(Protocol):
    """What it needs of the engine's thread. Both return at once."""

    def add_adapter(self, revision: str) -> None: ...

    def retire_adapter(self, revision: str, grace_s: float, on_gone: OnGone) -> bool: ...


class AdapterRefused(Exception):
    """What was asked for is not done; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidAdapter(AdapterRefused):
    """`field` of the request is at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnknownAdapter(AdapterRefused):
    """There is no such adapter."""


class AdapterNameTaken(AdapterRefused):
    """Some of the tenants have another adapter of this name."""


class TooManyAdapters(AdapterRefused):
    """There is no room for one more."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """An adapter as requests name it. Several may be the same weights."""

    name: str
    tenants: frozenset[str]  # that may use it; empty: all
    revision: str
    rank: int
    targets: tuple[str, ...]  # names of the modules that it changes, sorted
    num_bytes: int
    load_time: float = field(compare=False)  # seconds since the epoch

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


class AdapterDirectory:
    """Which adapters there are, and for whom.

    Invariant: adapters of one name that a tenant may use are for the same tenants, and differ in their revision. The
    engine knows the revisions of all entries, and those of `_departing`, whose weights are counted until they are gone.
    """

    def __init__(self, reader: AdapterReader, engine: AdapterEngine, config: LoraConfig) -> None:
        self._reader = reader
        self._engine = engine
        self._config = config
        self._entries: dict[_Key, AdapterEntry] = {}
        self._host_bytes: dict[str, int] = {}  # by revision
        self._departing: dict[str, asyncio.Future[Gone]] = {}  # by revision
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-reader")
        self._on_change: Callable[[], None] = lambda: None

    @property
    def host_bytes(self) -> int:
        """Memory of the weights on the host. From any thread."""
        return sum(tuple(self._host_bytes.values()))

    def entries(self) -> list[AdapterEntry]:
        """Return all adapters by name, those of one name and tenants as they came."""
        return sorted(self._entries.values(), key=lambda entry: (entry.name, sorted(entry.tenants)))

    def has(self, name: str, revision: str, tenant: str) -> bool:
        """Whether `tenant` may use an adapter of this name, and this is its revision."""
        return any(entry.revision == revision and entry.is_for(tenant) for entry in self._named(name))

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called whenever `entries` has changed."""
        self._on_change = on_change

    async def load(self, name: str, folder: str, tenants: Iterable[str], *, beside: bool = False) -> AdapterEntry:
        """Read an adapter and let requests name it. What the same tenants have under the name is replaced, all of it.

        With `beside` that stays, and requests choose by revision. Raises AdapterRefused, and changes nothing then.
        """
        allowed = _checked_tenants(tenants)
        _check_name(name)
        self._refuse_overlap(name, allowed)
        weights = await self._read(folder)
        while (departure := self._departing.get(weights.revision)) is not None:
            # Its KV is about to be dropped, and its weights forgotten: it comes back when that is done.
            await asyncio.shield(departure)
        entry = AdapterEntry(
            name, allowed, weights.revision, weights.rank, _targets(weights), weights.num_bytes, time.time()
        )
        entry = self._entries.get(_key(entry), entry)
        replaced = [] if beside else [each for each in self._all_of(name, allowed) if each is not entry]
        if replaced or _key(entry) not in self._entries:
            self._refuse_overlap(name, allowed)
            self._refuse_excess(entry, len(replaced))
            self._put(entry, weights)
            self._let_all_go(replaced, self._config.replaced_grace_s)
            self._on_change()
        _log.info("adapter loaded", adapter=name, revision=entry.revision, tenants=sorted(allowed), rank=entry.rank)
        return entry

    async def unload(self, name: str, revision: str, tenants: Iterable[str], grace_s: float) -> Gone:
        """Take an adapter away; without a `revision`, all that the name has for these tenants. Returns when those who
        use them have ended, or failed for it.

        Where the same weights have another name as well, they stay, and this returns at once. Raises UnknownAdapter.
        """
        allowed = frozenset(tenants)
        here = self._all_of(name, allowed)
        going = [entry for entry in here if revision in {"", entry.revision}]
        if not going:
            raise UnknownAdapter(self._why_unknown(name, revision, here))
        departures = self._let_all_go(going, grace_s)
        self._on_change()
        gone = [await asyncio.shield(departure) for departure in departures]
        total = Gone(sum(each.failed_sequences for each in gone), sum(each.dropped_tokens for each in gone))
        _log.info(
            "adapter unloaded", adapter=name, revisions=[entry.revision for entry in going], tenants=sorted(allowed),
            failed_sequences=total.failed_sequences, dropped_tokens=total.dropped_tokens,
        )  # fmt: skip
        return total

    def close(self) -> None:
        """Nothing is to be asked for afterwards. What is being read is read to its end, for nobody."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _read(self, folder: str) -> AdapterWeights:
        if not folder:
            raise InvalidAdapter("path", "is required: the folder that PEFT saved the adapter to")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._reader.read, Path(folder))
        except AdapterError as error:
            raise InvalidAdapter("path", f"{error.field}: {error.message}") from error

    def _named(self, name: str) -> list[AdapterEntry]:
        return [entry for entry in self._entries.values() if entry.name == name]

    def _all_of(self, name: str, tenants: frozenset[str]) -> list[AdapterEntry]:
        """Return what these tenants have under a name, as it came."""
        return [entry for entry in self._named(name) if entry.tenants == tenants]

    def _put(self, entry: AdapterEntry, weights: AdapterWeights) -> None:
        if entry.revision not in self._host_bytes:
            self._host_bytes[entry.revision] = entry.num_bytes
            self._reader.add(weights)
            self._engine.add_adapter(entry.revision)
        self._entries[_key(entry)] = entry

    def _let_all_go(self, entries: Sequence[AdapterEntry], grace_s: float) -> "list[asyncio.Future[Gone]]":
        """Take entries away; return when each of their weights is gone that no entry names any more."""
        for entry in entries:
            del self._entries[_key(entry)]
        departures = [self._let_go(entry.revision, grace_s) for entry in entries]
        return [departure for departure in departures if departure is not None]

    def _let_go(self, revision: str, grace_s: float) -> "asyncio.Future[Gone] | None":
        """Let weights go that no entry names any more; None if one does."""
        if any(entry.revision == revision for entry in self._entries.values()):
            return None
        loop = asyncio.get_running_loop()
        departure: asyncio.Future[Gone] = loop.create_future()
        self._departing[revision] = departure

        def on_gone(gone: Gone) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(self._gone, revision, gone)

        if not self._engine.retire_adapter(revision, grace_s, on_gone):
            self._gone(revision, _NOTHING)
        return departure

    def _gone(self, revision: str, gone: Gone) -> None:
        del self._host_bytes[revision]
        departure = self._departing.pop(revision)
        if not departure.done():
            departure.set_result(gone)

    def _refuse_overlap(self, name: str, tenants: frozenset[str]) -> None:
        for entry in self._named(name):
            if entry.tenants != tenants and (not entry.tenants or not tenants or entry.tenants & tenants):
                raise AdapterNameTaken(
                    f"adapter {name!r} is loaded for {_who(entry.tenants)}: to replace it name the same tenants, to "
                    "have another one beside it name others"
                )

    def _refuse_excess(self, entry: AdapterEntry, num_replaced: int) -> None:
        others = len(self._entries) - num_replaced - (_key(entry) in self._entries)
        if others >= self._config.max_adapters:
            raise TooManyAdapters(f"{others} adapters are loaded, as many as worker.lora.max_adapters allows")
        if entry.revision in self._host_bytes:
            return
        needed = self.host_bytes + entry.num_bytes
        if needed > self._config.max_host_bytes:
            raise TooManyAdapters(
                f"the adapter has {entry.num_bytes} bytes, which makes {needed} with those that are here (some may be "
                f"on their way out); worker.lora.max_host_bytes is {self._config.max_host_bytes}"
            )

    def _why_unknown(self, name: str, revision: str, here: Sequence[AdapterEntry]) -> str:
        if here:
            others = ", ".join(entry.revision for entry in here)
            return f"adapter {name!r} is loaded in revision {others}, not {revision}"
        if named := self._named(name):
            whom = ", and for ".join(_who(each.tenants) for each in named)
            return f"adapter {name!r} is loaded for {whom}: name the same tenants"
        return f"adapter {name!r} is not loaded"


def _key(entry: AdapterEntry) -> _Key:
    return entry.name, entry.tenants, entry.revision


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidAdapter(
            "name", f"is {name[:64]!r}; must have 1 to 64 lower-case letters, digits, hyphens, underscores and dots"
        )


def _checked_tenants(tenants: Iterable[str]) -> frozenset[str]:
    allowed = frozenset(tenants)
    if "" in allowed:
        raise InvalidAdapter("tenants", "holds an empty name")
    if len(allowed) > _MAX_TENANTS:
        raise InvalidAdapter("tenants", f"has {len(allowed)} names; at most {_MAX_TENANTS} are allowed")
    return allowed


def _targets(weights: AdapterWeights) -> tuple[str, ...]:
    return tuple(sorted({path.rpartition(".")[2] for path in weights.modules}))


def _who(tenants: frozenset[str]) -> str:
    names: Sequence[str] = sorted(tenants)
    return "all tenants" if not names else "tenants " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
