"""Pages in Redis, which all workers share. Needs the redis client; what the server does is in `redis_scripts`.

The bound counts pages and their frames; Redis needs some 400 bytes more for each page. Where the server has a memory
limit of its own, `volatile-lru` lets it drop pages and nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.commands.core import Script
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from hicache.storage.frame import content_of, frame_size, header_of
from hicache.storage.redis_scripts import FORGET, PUT, REMOVE_GROUP, TOUCH
from hicache.storage.store import (
    PageName,
    StoreConfigError,
    StoreCounts,
    StoreStats,
    StoreUnavailableError,
    check_limit,
)

PREFIX: Final = b"{radixgate.pages}:"

_MOST_DROPPED: Final = 1000  # in one call of a script: nobody else is served meanwhile

_LONGEST_S: Final = 1e9  # thirty years; the server and the system have limits of their own

_READ_BYTES: Final = 1 << 18  # at a time from the socket


class RedisStore:
    """Pages under one prefix of one database. Connects when first used, and again whenever the server is back."""

    name = "redis"

    def __init__(self, url: str, ttl_s: float, max_bytes: int, timeout_s: float) -> None:
        """Ask nobody yet. Raises StoreConfigError."""
        check_limit("storage.ttl_s", ttl_s)
        check_limit("storage.max_bytes", max_bytes)
        check_limit("storage.timeout_s", timeout_s)
        self._ttl_ms = max(1, round(min(ttl_s, _LONGEST_S) * 1000))
        self._max_bytes = max_bytes
        self._client = _client_of(url, min(timeout_s, _LONGEST_S))
        parts = urlsplit(url)
        self._address = f"{parts.hostname}:{parts.port or 6379}"
        self._put = self._client.register_script(PUT)
        self._touch = self._client.register_script(TOUCH)
        self._forget = self._client.register_script(FORGET)
        self._remove_group = self._client.register_script(REMOVE_GROUP)
        self._counts = StoreCounts()
        self._held = (0, 0)  # pages, bytes

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        fitting = [(name, content) for name, content in pages if frame_size(content) <= self._max_bytes]
        self._counts.refused += len(pages) - len(fitting)
        if not fitting:
            return 0
        with self._one_error():
            with self._client.pipeline(transaction=False) as pipeline:
                for name, content in fitting:
                    pipeline.set(_page(name), header_of(name, content) + content, px=self._ttl_ms)
                answers = pipeline.execute(raise_on_error=False)  # the error it raises quotes what it was sent
            for answer in answers:
                if isinstance(answer, RedisError):
                    raise answer
            # Only now: an entry without a page would be a promise, a page without an entry ends by itself.
            accounts = [value for name, content in fitting for value in (_member(name), frame_size(content))]
            kept = self._account(accounts)
        self._counts.stored += len(fitting)
        return kept

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        if not names:
            return []
        with self._one_error():
            frames = cast("list[bytes | None]", self._client.mget([_page(name) for name in names]))
            pairs = list(zip(names, frames, strict=True))
            contents = [content_of(name, frame) if frame is not None else None for name, frame in pairs]
            corrupt = [
                name
                for (name, frame), content in zip(pairs, contents, strict=True)
                if frame is not None and content is None
            ]
            if corrupt:
                self._run(self._forget, [_member(name) for name in corrupt])
            # Pages that are gone are asked for too: what is still recorded of them is put right.
            self._touch_all(names)
        self._counts.corrupt += len(corrupt)
        self._counts.missing += frames.count(None)
        self._counts.found += len(names) - contents.count(None)
        return contents

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        if not names:
            return []
        with self._one_error():
            return self._touch_all(names)

    def remove_group(self, group: bytes) -> int:
        removed = 0
        with self._one_error():
            while True:
                popped, *held = self._run(self._remove_group, [group, _MOST_DROPPED])
                self._held = held[0], held[1]
                removed += popped
                if popped < _MOST_DROPPED:
                    return removed

    def stats(self) -> StoreStats:
        return self._counts.stats(*self._held)

    def close(self) -> None:
        self._client.close()

    def _account(self, accounts: Sequence[bytes | int]) -> int:
        """Record pages that were written, drop what is too old or too much, and return how many of them are held."""
        while True:
            args = [self._max_bytes, self._ttl_ms, _MOST_DROPPED, *accounts]
            kept, dropped, num_pages, num_bytes, more = self._run(self._put, args)
            self._counts.evicted += dropped
            self._held = num_pages, num_bytes
            if not more:
                return kept

    def _touch_all(self, names: Sequence[PageName]) -> list[bool]:
        num_pages, num_bytes, *there = self._run(self._touch, [self._ttl_ms, *map(_member, names)])
        self._held = num_pages, num_bytes
        return [bool(found) for found in there]

    def _run(self, script: Script, args: Sequence[bytes | int]) -> list[int]:
        return cast("list[int]", script(keys=[PREFIX], args=args))

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            # What the server says may quote what it was sent; its first words tell enough.
            detail = f"{type(error).__name__}: {str(error)[:120]}"
            raise StoreUnavailableError(f"Redis at {self._address} cannot be used: {detail}") from error


def _client_of(url: str, timeout_s: float) -> Redis:
    try:
        client = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_read_size=_READ_BYTES,
            # Once more at once: a connection that died while idle is noticed only when it is used.
            retry=Retry(ConstantBackoff(0), 1, supported_errors=(RedisConnectionError,)),
        )
        client.connection_pool.make_connection()  # connects to nothing yet; refuses options that it does not know
    except (RedisError, ValueError, TypeError):
        # Not the error's own words: they repeat parts of the URL.
        raise StoreConfigError("storage.url is malformed: look at what follows the database's number") from None
    return client


def _member(name: PageName) -> bytes:
    return name.group + name.page


def _page(name: PageName) -> bytes:
    return PREFIX + b"page:" + name.group + name.page
