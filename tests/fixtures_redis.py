"""A real Redis server for tests: one process per test session, one clean database per test."""

from collections.abc import Iterator

import pytest
import redis

from cli.embedded_redis import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """A server that lives as long as the test process; use `redis_url` for an empty database on it."""
    with EmbeddedRedis.start() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="module")
def module_redis_url() -> Iterator[str]:
    """A server that only the tests of one file use, and that nobody empties: for what lives as long as they do."""
    with EmbeddedRedis.start() as server:
        yield server.url
