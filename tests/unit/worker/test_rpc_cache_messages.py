"""What the event log says, as messages: whole, in bounded parts."""

import pytest

from hicache.events import CacheDigest, CacheEvent, EventKind, Holding, Snapshot, TierDigest
from hicache.keys import Namespace
from radixgate.v1 import worker_pb2
from worker.rpc.cache_messages import MAX_PART_BYTES, digest_message, event_message, snapshot_messages

BASE, ADAPTED = Namespace(b"b" * 16), Namespace(b"a" * 16, "revision")


def names(number: int, first: int = 0) -> bytes:
    return b"".join(value.to_bytes(16, "little") for value in range(first, first + number))


def test_an_event_keeps_its_number_namespace_and_names() -> None:
    message = event_message(CacheEvent(7, EventKind.MOVED, "host", ADAPTED, names(3)))
    assert (message.seq, message.names) == (7, names(3))
    assert (message.change, message.tier) == (worker_pb2.CACHE_CHANGE_MOVED, worker_pb2.CACHE_TIER_HOST)
    assert (message.namespace.extra_key, message.namespace.adapter_revision) == (b"a" * 16, "revision")
    saved = event_message(CacheEvent(8, EventKind.STORED, "storage", BASE, names(1)))
    assert (saved.change, saved.tier) == (worker_pb2.CACHE_CHANGE_STORED, worker_pb2.CACHE_TIER_STORAGE)


def test_a_digest_is_the_sum_as_sixteen_bytes() -> None:
    message = digest_message(CacheDigest(9, TierDigest(2, 2**128 - 1), TierDigest(1, 258)))
    assert message.seq == 9
    assert (message.device.num_pages, message.device.sum) == (2, b"\xff" * 16)
    assert (message.host.num_pages, message.host.sum) == (1, b"\x02\x01" + bytes(14))


def test_an_empty_cache_is_one_part_that_is_the_last() -> None:
    assert snapshot_messages(Snapshot(0, ())) == [worker_pb2.CacheSnapshot(last=True)]


@pytest.mark.parametrize("num_names", [1, 10_000, 40_000])
def test_a_snapshot_comes_in_parts_that_together_are_all_of_it(num_names: int) -> None:
    holdings = (
        *(Holding("device", Namespace(number.to_bytes(16, "little")), names(1, number)) for number in range(num_names)),
        Holding("host", ADAPTED, names(num_names)),
    )
    parts = snapshot_messages(Snapshot(5, holdings))
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {part.seq for part in parts} == {5}
    assert all(sum(holding.ByteSize() for holding in part.holdings) <= MAX_PART_BYTES for part in parts)
    assert len(parts) <= 1 + 64 * num_names * 2 // MAX_PART_BYTES * 2, "parts are filled"
    found: dict[tuple[int, bytes], bytes] = {}
    for part in parts:
        for holding in part.holdings:
            where = (holding.tier, holding.namespace.extra_key)
            found[where] = found.get(where, b"") + holding.names
    assert found.pop((worker_pb2.CACHE_TIER_HOST, b"a" * 16)) == names(num_names)
    assert found == {(worker_pb2.CACHE_TIER_DEVICE, held.namespace.extra_key): held.packed for held in holdings[:-1]}
