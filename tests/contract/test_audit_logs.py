"""What every audit log promises; each implementation passes."""

from collections.abc import AsyncIterator

import pytest

from gateway.config import RedisConfig
from gateway.identity.audit import MAX_ENTRIES, MAX_STRANGERS, AuditEntry, AuditLog, MemoryAuditLog, RedisAuditLog
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver


@pytest.fixture(params=["memory", "redis"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[AuditLog]:
    if request.param == "memory":
        yield MemoryAuditLog()
        return
    client = connect(RedisConfig(url=request.getfixturevalue("redis_url")))
    yield RedisAuditLog(client, StoreReach(client, 5.0, NullObserver()))
    await client.aclose()


def entry(target: str, operator: str = "admin") -> AuditEntry:
    return AuditEntry(1_700_000_000.25, operator, "SuspendTenant", target, "OK", "ipv4:127.0.0.1:5")


async def test_an_entry_is_kept_as_it_was_recorded(log: AuditLog) -> None:
    for each in (entry("tenant ü"), entry("", "")):
        await log.record(each)
        assert [found.entry for found in await log.before(None, 1)] == [each]


async def test_entries_come_newest_first_from_before_a_number(log: AuditLog) -> None:
    for i in range(6):
        await log.record(entry(str(i), "admin" if i % 2 else ""))
    everything = await log.before(None, 100)
    assert [found.entry.target for found in everything] == ["5", "4", "3", "2", "1", "0"]
    numbers = [found.number for found in everything]
    assert numbers == sorted(set(numbers), reverse=True)
    for start in range(5):
        assert await log.before(numbers[start], 2) == everything[start + 1 : start + 3]
    assert await log.before(numbers[-1], 2) == []


async def test_an_empty_log_has_no_entries(log: AuditLog) -> None:
    assert await log.before(None, 10) == []
    assert await log.before(5, 10) == []


async def test_strangers_push_out_no_entry_of_an_operator_and_are_bounded(log: AuditLog) -> None:
    await log.record(entry("kept"))
    for i in range(MAX_STRANGERS + 300):
        await log.record(entry(str(i), ""))
    found = await log.before(None, MAX_ENTRIES)
    assert found[-1].entry.target == "kept"
    # A stream in Redis is cut by whole blocks of a hundred.
    assert MAX_STRANGERS <= len(found) - 1 < MAX_STRANGERS + 200
    assert found[0].entry.target == str(MAX_STRANGERS + 299)
