"""Calls that create something, repeated: the first answer again, and nothing created twice.

    {radixgate}:request:METHOD:DIGEST    hash, kept for a day   content (digest), salt (hex), at_ms, until_ms, [answer]

DIGEST is of the request's `request_id`. Whoever finds no answer there and nobody at it (`until_ms` has passed, or the
one who was at it has given up) makes it. Salt and time are those of the first attempt, also in a second one: what is
made from them is the same, even if the first one did more than it could tell.
"""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from redis.asyncio import Redis

from gateway.errors import AlreadyExistsError, GatewayError, InvalidRequestError, UnavailableError, Violation
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX

_log = structlog.get_logger(__name__)

AnswerT = TypeVar("AnswerT", bound=Message)

MAX_REQUEST_ID_CHARS = 128
KEPT_S = 86_400
_LEASE_S = 60.0  # of one that has died; whoever lives renews it
_POLL_S = 0.05
_SALT_BYTES = 32

# ARGV: content, salt, at_ms, lease_ms, kept_ms. The server's clock, which all gateways share, counts the lease.
_CLAIM = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ends = string.format('%.0f', now + ARGV[4])
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('HSET', KEYS[1], 'content', ARGV[1], 'salt', ARGV[2], 'at_ms', ARGV[3], 'until_ms', ends)
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    return {'mine', ARGV[2], ARGV[3]}
end
local row = redis.call('HMGET', KEYS[1], 'content', 'salt', 'at_ms', 'until_ms', 'answer')
if row[1] ~= ARGV[1] then return {'other'} end
if row[5] then return {'answered', row[2], row[3], row[5]} end
if tonumber(row[4]) > now then return {'running'} end
redis.call('HSET', KEYS[1], 'until_ms', ends)
return {'mine', row[2], row[3]}
"""
_RENEW = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now + ARGV[1]))
"""
# Only what is still there: a field alone would be kept for ever.
_NOTE = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is the same in every attempt at one request."""

    salt: bytes  # random; forgotten after a day
    at: float  # seconds since the epoch

    @property
    def mark(self) -> str:
        """Names the request in what it has made."""
        return hashlib.sha256(b"radixgate-mark:" + self.salt).hexdigest()[:32]


class Idempotency:
    """Remembers the answers of a day. Belongs to the event loop.

    Invariant: two calls of one method with one request id never make something at the same time.
    """

    def __init__(
        self, client: Redis, reach: StoreReach, now: Callable[[], float] = time.time, lease_s: float = _LEASE_S
    ) -> None:
        self._client = client
        self._reach = reach
        self._now = now
        self._lease_ms = int(lease_s * 1000)
        self._renew = client.register_script(_RENEW)
        self._claim = client.register_script(_CLAIM)
        self._note = client.register_script(_NOTE)
        self._running: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def once(self, method: str, request: Message, make: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """Return what `make()` does, or its answer to the same request earlier today.

        `request` has a field `request_id`; without one nothing is remembered. A refusal is not remembered. What has
        begun goes on when its caller has gone. Raises AlreadyExistsError for a request id that was used with other
        content, InvalidRequestError for one that is malformed, UnavailableError, and whatever `make` raises.
        """
        answer, _ = await self.attempt(method, request, lambda _: make())
        return answer

    async def attempt(
        self, method: str, request: Message, make: Callable[[Attempt], Awaitable[AnswerT]]
    ) -> tuple[AnswerT, Attempt]:
        """Like `once`, for who makes what follows from the attempt and is not in the answer."""
        request_id: str = getattr(request, "request_id")  # noqa: B009 - of messages of many kinds
        if not request_id:
            attempt = Attempt(secrets.token_bytes(_SALT_BYTES), self._now())
            return await make(attempt), attempt
        _check_form(request_id)
        task = asyncio.create_task(self._attempt(method, request_id, request, make))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what goes on without its caller, but for what only waits for another gateway."""
        self._closing = True
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _attempt(
        self, method: str, request_id: str, request: Message, make: Callable[[Attempt], Awaitable[AnswerT]]
    ) -> tuple[AnswerT, Attempt]:
        key = f"{PREFIX}request:{method}:{hashlib.sha256(request_id.encode()).hexdigest()}"
        content = hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
        while True:
            outcome, *rest = await self._claimed(key, content)
            if outcome == "other":
                raise AlreadyExistsError(
                    "this request_id was used with another content within a day", reason="REQUEST_ID_REUSED"
                )
            if outcome != "running":
                break
            if self._closing:
                raise UnavailableError("the gateway shuts down", reason="GATEWAY_SHUTTING_DOWN")
            await asyncio.sleep(_POLL_S)
        attempt = Attempt(bytes.fromhex(rest[0]), int(rest[1]) / 1000)
        if outcome == "answered":
            return _unpacked(rest[2]), attempt
        return await self._made(key, attempt, make), attempt

    async def _claimed(self, key: str, content: str) -> list[str]:
        salt, at_ms = secrets.token_hex(_SALT_BYTES), round(self._now() * 1000)
        args: list[str | int] = [content, salt, at_ms, self._lease_ms, KEPT_S * 1000]
        outcome: list[str] = await self._reach.call(lambda: self._claim(keys=[key], args=args))
        return outcome

    async def _made(self, key: str, attempt: Attempt, make: Callable[[Attempt], Awaitable[AnswerT]]) -> AnswerT:
        try:
            answer = await self._held(key, make(attempt))
        except UnavailableError:
            await self._write(
                lambda: self._note(keys=[key], args=["until_ms", 0])
            )  # it may have been done all the same
            raise
        except GatewayError:
            await self._write(lambda: self._client.delete(key))
            raise
        except BaseException:
            await self._write(lambda: self._note(keys=[key], args=["until_ms", 0]))
            raise
        await self._write(lambda: self._note(keys=[key], args=["answer", _packed(answer)]))
        return answer

    async def _held(self, key: str, made: Awaitable[AnswerT]) -> AnswerT:
        """Return or raise what `made` does, under a lease that lasts: weights may take longer to load than one."""
        renewing = asyncio.create_task(self._renewed(key))
        try:
            return await made
        finally:
            renewing.cancel()

    async def _renewed(self, key: str) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            await self._write(lambda: self._renew(keys=[key], args=[self._lease_ms]))

    async def _write(self, make: Callable[[], Awaitable[Any]]) -> None:
        """Write what only saves work: without it a repetition makes the same again, after the lease."""
        try:
            await self._reach.call(make)
        except UnavailableError:
            _log.warning("an answer could not be remembered")


def _check_form(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_CHARS or not request_id.isprintable():
        raise InvalidRequestError(
            [Violation("request_id", f"must be at most {MAX_REQUEST_ID_CHARS} printable characters")]
        )


def _packed(answer: Message) -> str:
    packed = any_pb2.Any()
    packed.Pack(answer)
    return base64.b64encode(packed.SerializeToString()).decode()


def _unpacked(text: str) -> Any:
    packed = any_pb2.Any.FromString(base64.b64decode(text))
    kind: Any = descriptor_pool.Default().FindMessageTypeByName(packed.TypeName())
    answer = message_factory.GetMessageClass(kind)()
    packed.Unpack(answer)
    return answer
