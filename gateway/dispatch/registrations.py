"""The workers that have registered, as this gateway reads them. What they write is in `worker.registry.keys`.

    {radixgate}:worker:ID          hash     incarnation, address, document (JSON of WorkerRegistration); expires
    {radixgate}:workers            zset     ID -> when its entry expires, milliseconds by Redis' clock
    {radixgate}:workers-changed    zset     ID -> the number of its last change
    {radixgate}:workers-number     string   the number of the last change of all: it only ever rises

Whoever can write there can have requests sent to an address of its choice, so what is there is not believed blindly:
what does not read as a registration is left out, and said once.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from google.protobuf import json_format
from redis.asyncio import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

from gateway.config import is_address
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from radixgate.v1 import worker_pb2

_log = structlog.get_logger(__name__)

ENTRY: Final = PREFIX + "worker:"
WORKERS: Final = PREFIX + "workers"
CHANGED: Final = PREFIX + "workers-changed"
NUMBER: Final = PREFIX + "workers-number"

MAX_WORKERS: Final = 10_000
MAX_BYTES: Final = 65_536  # of one document
_ANSWER_BYTES: Final = 1 << 20  # of one answer, but for its last document
_MOST_ANSWERS: Final = 2 * MAX_WORKERS * MAX_BYTES // _ANSWER_BYTES  # of one reading: all twice, each as long as may be
_MAX_ID_CHARS: Final = 253
_MAX_ADDRESS_CHARS: Final = 261  # a host name of 253, and a port
_MAX_TOLD: Final = 1_000  # complaints that are remembered, so that each is made once

# Names and IP addresses: what else gRPC would take for a target (unix:, dns:, several addresses) is none.
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]")
_EVERYWHERE: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - refused, not bound

# ARGV: the last number that was read, how many workers at most, how long a document may be, and how long all of an
# answer. Returns the number up to which this answer goes; where it is another one also 1 if there is more to read, how
# many workers there are, the ids of those that are taken, and id and document of each that has changed since, by turns.
# What has expired goes first, and is a change. An entry that is no hash has no document.
_READ: Final = """
local entry, workers, changed, numbers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', string.format('%.0f', us / 1000), 'LIMIT', 0, 1000)
for _, id in ipairs(gone) do
    redis.call('ZREM', workers, id)
    redis.call('ZREM', changed, id)
    redis.call('DEL', entry .. id)
end
if #gone > 0 then
    local last = tonumber(redis.call('GET', numbers) or '0')
    local number = math.max(us, last and last < 2 ^ 53 and last + 1 or 0)
    redis.call('SET', numbers, string.format('%.0f', number))
end
local number = redis.call('GET', numbers) or '0'
if number == ARGV[1] then return {number} end
local since = tonumber(ARGV[1]) or 0
if since > (tonumber(number) or 0) then since = 0 end
local ids, news, left, more = {}, {}, tonumber(ARGV[4]), 0
local ranked = redis.call('ZRANGE', changed, 0, ARGV[2] - 1, 'WITHSCORES')
for i = 1, #ranked, 2 do
    local id = ranked[i]
    ids[#ids + 1] = id
    if (since == 0 or tonumber(ranked[i + 1]) > since) and more == 0 then
        local length = redis.pcall('HSTRLEN', entry .. id, 'document')
        local fits = type(length) == 'number' and length <= tonumber(ARGV[3])
        local document = fits and redis.call('HGET', entry .. id, 'document') or ''
        news[#news + 1] = id
        news[#news + 1] = document
        left = left - #document - #id
        if left < 0 then
            more = 1
            number = ranked[i + 1]
        end
    end
end
return {number, more, redis.call('ZCARD', changed), ids, news}
"""
_READ_SHA: Final = hashlib.sha1(_READ.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """One worker, as far as gateways go by what it has registered: everything else it tells them itself."""

    worker_id: str
    address: str
    incarnation: str
    model: str


@dataclass(frozen=True, slots=True)
class Registered:
    """All that is registered at one moment."""

    workers: Mapping[str, RegisteredWorker] = field(default_factory=dict)  # by id
    num_ignored: int = 0


class Registrations:
    """Reads the registry. Belongs to the event loop."""

    def __init__(self, client: Redis, reach: StoreReach, max_workers: int = MAX_WORKERS) -> None:
        self._client = client
        self._reach = reach
        self._max_workers = max_workers
        self._number = "0"
        self._known: dict[str, RegisteredWorker | None] = {}  # None: what is there is no registration
        self._num_all = 0
        self._lacks_some = False
        self._latest = Registered()
        self._told: set[tuple[str, str]] = set()

    async def read(self) -> Registered:
        """Return what is registered now: the same object as the last time where nothing has changed.

        Raises UnavailableError.
        """
        has_changed = reads_all = False
        for _ in range(_MOST_ANSWERS):
            told = _text(await self._reach.call(self._answer))
            if len(told) == 1:
                break
            has_changed = True
            if self._take(*told):
                continue
            if reads_all or not self._lacks_some:
                break
            # There was no room for some when they came, and there is now: all is read again, and once.
            self._number, reads_all = "0", True
        if has_changed:
            taken = {worker_id: known for worker_id, known in self._known.items() if known is not None}
            self._latest = Registered(taken, self._num_all - len(taken))
        return self._latest

    async def _answer(self) -> Any:
        """Return what Redis says, as bytes: one entry that is no text must not spoil the answer."""
        args = (4, ENTRY, WORKERS, CHANGED, NUMBER, self._number, self._max_workers, MAX_BYTES, _ANSWER_BYTES)
        ask: Callable[..., Awaitable[Any]] = self._client.execute_command
        try:
            return await ask("EVALSHA", _READ_SHA, *args, **{NEVER_DECODE: True})
        except NoScriptError:
            await self._client.script_load(_READ)
            return await ask("EVALSHA", _READ_SHA, *args, **{NEVER_DECODE: True})

    def _take(self, number: str, more: int, num_all: int, ids: list[str], news: list[str]) -> bool:
        """Take one answer; return whether there is more to read."""
        self._number, self._num_all = number, num_all
        known = {**self._known, **{worker_id: self._taken(worker_id, text) for worker_id, text in _pairs(news)}}
        self._known = {worker_id: known[worker_id] for worker_id in ids if worker_id in known}
        if num_all > len(ids):
            self._complain("", f"{num_all} workers are registered; the first {self._max_workers} are taken")
        self._lacks_some = len(self._known) < len(ids)
        return bool(more)

    def _taken(self, worker_id: str, text: str) -> RegisteredWorker | None:
        try:
            return read_registration(worker_id, text)
        except ValueError as error:
            self._complain(worker_id, str(error))
            return None

    def _complain(self, worker_id: str, reason: str) -> None:
        if (worker_id, reason) in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add((worker_id, reason))
        _log.warning("registration ignored", worker_id=worker_id[:_MAX_ID_CHARS], reason=reason)


def read_registration(worker_id: str, text: str) -> RegisteredWorker:
    """Return what a document says. Raises ValueError, saying what is wrong with it."""
    if not 1 <= len(worker_id) <= _MAX_ID_CHARS or not worker_id.isprintable():
        raise ValueError("the id is no text of 1 to 253 printable characters")
    if not text:
        raise ValueError(f"there is no document, or one of more than {MAX_BYTES} bytes")
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004 - as all else that is wrong with it
        # What a later version says beyond this one's words is no fault.
        told = json_format.ParseDict(content, worker_pb2.WorkerRegistration(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"is no registration: {str(error)[:200]}") from None
    if told.worker_id != worker_id:
        raise ValueError(f"names another worker, {told.worker_id[:64]!r}")
    if not is_reachable(told.address):
        raise ValueError(f"the address {told.address[:64]!r} is no HOST:PORT that could be reached")
    return RegisteredWorker(worker_id, told.address, told.incarnation, told.model)


def is_reachable(address: str) -> bool:
    """Whether an address names one host and a port on it."""
    if len(address) > _MAX_ADDRESS_CHARS or not is_address(address):
        return False
    host, _, port = address.rpartition(":")
    return bool(_HOST.fullmatch(host)) and host not in _EVERYWHERE and int(port) > 0


def _text(told: Any) -> Any:
    """Return an answer with text for bytes. What is none has backslashes, and so is nobody's name."""
    if isinstance(told, list):
        return [_text(each) for each in told]
    return told.decode("utf-8", "backslashreplace") if isinstance(told, bytes) else told


def _pairs(flat: list[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
