"""The identity provider's keys: fetched again, kept when there is nothing better, never fetched too often."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.identity.key_ring import Fetch, KeyRing, from_file, from_url
from tests.fakes.gateway_stack import until
from tests.fakes.identity_provider import KeyServer, key_server, key_set, private_key, public_jwk

OLD = key_set(public_jwk(private_key("ES256", "old"), kid="old"))
NEW = key_set(public_jwk(private_key("ES256", "new"), kid="new"))


class Told:
    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.failed: list[str] = []

    def signing_keys_loaded(self, num_keys: int) -> None:
        self.loaded.append(num_keys)

    def signing_keys_failed(self, reason: str) -> None:
        self.failed.append(reason)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def published() -> Iterator[KeyServer]:
    with key_server() as server:
        server.document = OLD
        yield server


def ring_of(fetch: Fetch, told: Told, refresh_s: float = 60.0, min_pause_s: float = 0.0) -> KeyRing:
    return KeyRing(fetch, ("ES256",), refresh_s, told, min_pause_s)


@contextlib.asynccontextmanager
async def running(ring: KeyRing) -> AsyncIterator[KeyRing]:
    task = asyncio.create_task(ring.run())
    try:
        yield ring
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def has(ring: KeyRing, kid: str) -> bool:
    return len(await ring.find(kid, "ES256")) == 1


async def test_an_unknown_key_is_fetched_when_a_token_names_it(published: KeyServer, told: Told) -> None:
    ring = ring_of(from_url(published.url), told)
    assert not ring.known
    assert await has(ring, "old")
    published.document = NEW
    assert await has(ring, "new")
    assert not await has(ring, "old")
    assert ring.known


async def test_known_keys_cost_no_fetch(published: KeyServer, told: Told) -> None:
    ring = ring_of(from_url(published.url), told)
    for _ in range(10):
        assert await has(ring, "old")
    assert published.requests == 1


async def test_strangers_who_invent_keys_cause_one_fetch_in_a_while(published: KeyServer, told: Told) -> None:
    ring = ring_of(from_url(published.url), told, min_pause_s=3600.0)
    found = await asyncio.gather(*(has(ring, f"invented-{i}") for i in range(50)))
    found += await asyncio.gather(*(has(ring, f"invented-{i}") for i in range(50)))
    assert found == [False] * 100
    assert published.requests == 1
    assert await has(ring, "old")


async def test_keys_are_fetched_again_and_those_that_are_gone_do_not_count(published: KeyServer, told: Told) -> None:
    async with running(ring_of(from_url(published.url), told, refresh_s=0.02, min_pause_s=3600.0)) as ring:
        await until(lambda: bool(told.loaded))
        assert await has(ring, "old")
        published.document = NEW
        fetched = published.requests
        await until(lambda: published.requests > fetched + 1)
        assert await has(ring, "new")
        assert not await has(ring, "old")


@pytest.mark.parametrize("fault", ["status", "malformed", "too large"])
async def test_while_the_provider_is_away_the_last_keys_stay(published: KeyServer, told: Told, fault: str) -> None:
    async with running(ring_of(from_url(published.url), told, refresh_s=0.02)) as ring:
        await until(lambda: bool(told.loaded))
        match fault:
            case "status":
                published.status = 503
            case "malformed":
                published.document = b"<html>sorry</html>"
            case _:
                published.document = b" " * (2 << 20)
        await until(lambda: len(told.failed) >= 2)
        assert set(told.failed) == {"malformed" if fault in {"malformed", "too large"} else "unreachable"}
        assert await has(ring, "old")
        published.status, published.document = 200, NEW
        loaded = len(told.loaded)
        await until(lambda: len(told.loaded) > loaded + 1)
        assert await has(ring, "new")


async def test_a_redirection_leads_nowhere(published: KeyServer, told: Told) -> None:
    with key_server() as elsewhere:
        elsewhere.document = NEW
        published.status, published.location = 302, elsewhere.url
        assert not await has(ring_of(from_url(published.url), told), "new")
        assert (told.failed, elsewhere.requests) == (["unreachable"], 0)


async def test_nobody_there_is_no_keys_and_they_come_with_the_provider(told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/keys"
    ring = ring_of(from_url(url), told)
    assert not await has(ring, "old")
    assert (ring.known, told.failed) == (False, ["unreachable"])


async def test_an_answer_that_drips_is_given_up(told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                for _ in range(1000):
                    connection.sendall(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        ring = ring_of(from_url(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.2), told)
        async with asyncio.timeout(5):
            assert not await has(ring, "old")
        assert told.failed == ["unreachable"]
        thread.join(10)


async def test_what_is_no_http_is_no_answer(told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        ring = ring_of(from_url(f"http://127.0.0.1:{listener.getsockname()[1]}/"), told)
        assert not await has(ring, "old")
        assert told.failed == ["unreachable"]
        thread.join(10)


async def test_a_file_is_read_again_when_it_changes(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(OLD)
    ring = ring_of(from_file(str(file)), told)
    ring.load()
    assert await has(ring, "old")
    file.write_bytes(NEW[:40])
    assert not await has(ring, "new")
    assert told.failed == ["malformed"]
    assert await has(ring, "old")
    file.write_bytes(NEW)
    assert await has(ring, "new")


@pytest.mark.parametrize(
    "content",
    [None, b"", b'{"keys": []}', OLD.replace(b"P-256", b"P-384")],
    ids=["no file", "empty", "no keys", "a key that is none"],
)
def test_a_start_without_keys_fails(told: Told, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises((OSError, ValueError)):
        ring_of(from_file(str(file)), told).load()


async def test_a_provider_that_publishes_no_key_any_more_is_believed(published: KeyServer, told: Told) -> None:
    ring = ring_of(from_url(published.url), told)
    assert await has(ring, "old")
    published.document = key_set()
    assert not await has(ring, "unknown")
    assert not await has(ring, "old")
