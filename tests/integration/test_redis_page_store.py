"""Pages in Redis where it is not at its best: dead, silent, full, forgetful, restarted, and shared by many."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import redis

from cli.embedded_redis import EmbeddedRedis, EmbeddedRedisConfig
from hicache.storage.frame import frame_size
from hicache.storage.redis_store import PREFIX, RedisStore
from hicache.storage.store import PageName, StoreUnavailableError
from tests.processes import wait_until

GROUPS = [bytes([number]) * 16 for number in range(3)]
PLENTY = 1 << 24


def page(number: int, group: bytes = GROUPS[0]) -> PageName:
    return PageName(group, number.to_bytes(16, "big"))


def content(name: PageName) -> bytes:
    return (name.group + name.page) * 5


def pages(*numbers: int) -> list[tuple[PageName, bytes]]:
    return [(page(number), content(page(number))) for number in numbers]


def store_at(url: str, *, ttl_s: float = 1000.0, max_bytes: int = PLENTY, timeout_s: float = 5.0) -> RedisStore:
    return RedisStore(url, ttl_s=ttl_s, max_bytes=max_bytes, timeout_s=timeout_s)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    store = store_at(redis_url)
    yield store
    store.close()


def test_a_dead_server_is_noticed_quickly() -> None:
    store = store_at("redis://127.0.0.1:1/0", timeout_s=2.0)
    begun = time.monotonic()
    for call in (lambda: store.put(pages(1)), lambda: store.get([page(1)]), lambda: store.remove_group(GROUPS[0])):
        with pytest.raises(StoreUnavailableError, match=r"^Redis at 127\.0\.0\.1:1 cannot be used: ConnectionError"):
            call()
    assert time.monotonic() - begun < 2.0
    assert store.stats().missing == 0


def test_a_silent_server_costs_the_time_out_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = store_at(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_s=0.2)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="TimeoutError"):
            store.get([page(1)])
        assert 0.2 <= time.monotonic() - begun < 2.0


def test_a_wrong_password_is_a_store_that_is_away(redis_url: str) -> None:
    host = redis_url.rpartition("@")[2]
    with pytest.raises(StoreUnavailableError) as caught:
        store_at(f"redis://:wr0ng@{host}").contains([page(1)])
    assert "wr0ng" not in str(caught.value)


def test_a_server_that_was_restarted_is_found_again() -> None:
    with EmbeddedRedis.start() as first:
        port = first.port
        password = first.url.removeprefix("redis://:").partition("@")[0]
        store = store_at(first.url)
        store.put(pages(1))
    with pytest.raises(StoreUnavailableError):
        store.get([page(1)])
    with EmbeddedRedis.start(EmbeddedRedisConfig(port=port)) as second:
        with redis.Redis.from_url(second.url) as client:
            client.config_set("requirepass", password)
        assert store.get([page(1)]) == [None]
        assert store.put(pages(1)) == 1
        assert store.get([page(1)]) == [content(page(1))]
        store.close()


def test_forgotten_scripts_are_sent_again(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(1))
    client.script_flush()
    assert store.contains([page(1)]) == [True]


def test_a_full_server_takes_no_page_and_can_still_be_read_and_emptied(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(1))
    client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(StoreUnavailableError, match=r"cannot be used: OutOfMemoryError: [\w >'.]*$"):
            store.put(pages(2))
        assert store.contains([page(1), page(2)]) == [True, False]
        assert store.get([page(1), page(3)]) == [content(page(1)), None]
        assert store.remove_group(GROUPS[0]) == 1
    finally:
        client.config_set("maxmemory", "0")
    assert store.put(pages(2)) == 1


def test_pages_expire_when_nobody_uses_them(redis_url: str, client: redis.Redis) -> None:
    store = store_at(redis_url, ttl_s=0.3)
    store.put(pages(1, 2))
    wait_until(lambda: client.exists(key(1)) == 0, what="the end of the page")
    assert store.get([page(1)]) == [None]
    assert store.stats().num_pages == 1  # nobody has asked for the second
    wait_until(lambda: store.put(pages(3)) == 1 == store.stats().num_pages, what="the end of the second page")
    assert store.stats().evicted == 1
    store.close()


def test_the_longest_times_are_taken(redis_url: str) -> None:
    store = store_at(redis_url, ttl_s=1e308, timeout_s=1e308)
    assert store.put(pages(1)) == 1
    assert store.get([page(1)]) == [content(page(1))]
    store.close()


def test_use_prolongs_a_pages_life(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(1, 2))
    for number in (1, 2):
        client.pexpire(key(number), 50_000)
    store.get([page(1)])
    assert client.pttl(key(1)) > 900_000
    assert client.pttl(key(2)) <= 50_000
    store.contains([page(2)])
    assert client.pttl(key(2)) > 900_000


def test_nothing_stays_in_redis_once_all_pages_are_gone(store: RedisStore, client: redis.Redis) -> None:
    store.put([(page(number, group), b"x") for group in GROUPS for number in range(5)])
    for group in GROUPS:
        store.remove_group(group)
    assert client.keys("*") == []


def test_keys_of_others_are_left_alone(store: RedisStore, client: redis.Redis) -> None:
    client.set("{radixgate}:tenants", "kept")
    store.put(pages(1))
    store.remove_group(GROUPS[0])
    assert client.keys("*") == [b"{radixgate}:tenants"]


def test_all_keys_lie_on_one_node_of_a_cluster(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(1, 2))
    assert client.keys("*") == client.keys("{radixgate.pages}:*") != []


def test_what_redis_dropped_by_itself_is_no_longer_accounted_for(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(*range(10)))
    client.delete(*(key(number) for number in range(8)))
    store.contains([page(number) for number in range(10)])
    assert store.stats().num_bytes == 2 * frame_size(content(page(0)))


def test_accounts_that_redis_lost_begin_again(store: RedisStore, client: redis.Redis) -> None:
    store.put(pages(1, 2))
    client.delete(PREFIX + b"used")
    assert store.get([page(1)]) == [content(page(1))]
    store.put(pages(3))
    assert store.stats().num_bytes == frame_size(content(page(3)))


def test_thousands_of_pages_are_dropped_when_the_bound_shrinks(redis_url: str) -> None:
    large = store_at(redis_url)
    for first in range(0, 3000, 500):
        large.put(pages(*range(first, first + 500)))
    small = store_at(redis_url, max_bytes=5 * frame_size(content(page(0))))
    assert small.put(pages(3000, 3001)) == 2
    assert small.stats().num_pages == 5
    assert small.stats().evicted == 2997
    large.close()
    small.close()


def test_a_group_of_thousands_is_removed(store: RedisStore) -> None:
    for first in range(0, 2500, 500):
        store.put(pages(*range(first, first + 500)))
    assert store.remove_group(GROUPS[0]) == 2500
    assert store.stats().num_bytes == 0


def test_many_workers_share_one_server_and_keep_its_accounts(redis_url: str, client: redis.Redis) -> None:
    bound = 20 * frame_size(content(page(0)))
    names = [page(number, group) for number in range(30) for group in GROUPS]

    def work(seed: int) -> None:
        random = Random(seed)
        store = store_at(redis_url, max_bytes=bound)
        for _ in range(150):
            some = random.sample(names, 5)
            call = random.random()
            if call < 0.45:
                store.put([(name, content(name)) for name in some])
                assert store.stats().num_bytes <= bound
            elif call < 0.95:
                assert all(found in {None, content(name)} for name, found in zip(some, store.get(some), strict=True))
            else:
                store.remove_group(random.choice(GROUPS))
        assert store.stats().corrupt == 0
        store.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    members = set(client.zrange(PREFIX + b"used", 0, -1))
    sizes = client.hgetall(PREFIX + b"sizes")
    total = int(sizes.pop(b"total", b"0"))
    assert set(sizes) == members
    assert sum(map(int, sizes.values())) == total <= bound
    by_group = set().union(*(client.smembers(PREFIX + b"group:" + group) for group in GROUPS))
    assert by_group == members


def key(number: int) -> bytes:
    return PREFIX + b"page:" + GROUPS[0] + page(number).page
