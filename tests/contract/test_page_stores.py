"""What every store of pages promises; each implementation passes, Redis as a real server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from hicache.storage.file_store import FileStore
from hicache.storage.frame import HEADER_BYTES, header_of
from hicache.storage.memory import MemoryStore
from hicache.storage.redis_store import PREFIX, RedisStore
from hicache.storage.store import PageName, PageStore, StoreConfigError
from worker.simulate.movement import TimedStore

GROUP = b"g" * 16
OTHER = b"o" * 16
PLENTY = 1 << 20


def page(number: int, group: bytes = GROUP) -> PageName:
    # Spread over folders as hashes are.
    return PageName(group, (number * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16, "big"))


def content(number: int, num_bytes: int = 100) -> bytes:
    return bytes((number + i) % 256 for i in range(num_bytes))


def pages(*numbers: int) -> list[tuple[PageName, bytes]]:
    return [(page(number), content(number)) for number in numbers]


def names(*numbers: int) -> list[PageName]:
    return [page(number) for number in numbers]


def room_for(num_pages: int) -> int:
    """Bytes that so many pages of `pages` take."""
    return num_pages * (HEADER_BYTES + 100)


@dataclass
class Place:
    """Where stores of one kind put their pages: every store opened here shares it, if the kind can share."""

    open: Callable[[int], PageStore]
    alter: Callable[[PageName, Callable[[bytes], bytes | None]], None]  # what lies there, behind the store's back


def file_place(folder: Path) -> Place:
    def alter(name: PageName, change: Callable[[bytes], bytes | None]) -> None:
        path = folder / name.group.hex() / name.page[:1].hex() / name.page.hex()
        altered = change(path.read_bytes() if path.exists() else b"")
        if altered is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(altered)

    return Place(lambda max_bytes: FileStore(folder, max_bytes, look_around_every_s=0.0), alter)


def redis_place(url: str) -> Place:
    def alter(name: PageName, change: Callable[[bytes], bytes | None]) -> None:
        with redis.Redis.from_url(url) as client:
            key = PREFIX + b"page:" + name.group + name.page
            altered = change(client.get(key) or b"")
            if altered is None:
                client.delete(key)
            else:
                client.set(key, altered, keepttl=True)

    return Place(lambda max_bytes: RedisStore(url, ttl_s=1000.0, max_bytes=max_bytes, timeout_s=5.0), alter)


@pytest.fixture(params=["file", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Places that several stores share, and that outlive them."""
    yield from opened(file_place(tmp_path / "kv") if request.param == "file" else redis_of(request))


@pytest.fixture(params=["memory", "timed", "file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Place(MemoryStore, lambda name, change: None)
    elif request.param == "timed":
        yield Place(lambda max_bytes: TimedStore(MemoryStore(max_bytes), 1e-6), lambda name, change: None)
    else:
        yield from opened(file_place(tmp_path / "kv") if request.param == "file" else redis_of(request))


def redis_of(request: pytest.FixtureRequest) -> Place:
    return redis_place(request.getfixturevalue("redis_url"))


def opened(place: Place) -> Iterator[Place]:
    stores: list[PageStore] = []

    def open_store(max_bytes: int) -> PageStore:
        stores.append(place.open(max_bytes))
        return stores[-1]

    yield Place(open_store, place.alter)
    for store in stores:
        store.close()
        store.close()  # twice is harmless


# ------------------------------------------------------------------------------------------------------ put and get


def test_what_was_put_is_found(place: Place) -> None:
    store = place.open(PLENTY)
    assert store.put(pages(1, 2, 3)) == 3
    assert store.get(names(2, 9, 3)) == [content(2), None, content(3)]
    assert store.contains(names(1, 9)) == [True, False]


def test_an_empty_store_has_nothing(place: Place) -> None:
    store = place.open(PLENTY)
    assert store.get(names(1, 2)) == [None, None]
    assert store.contains(names(1)) == [False]
    assert (store.stats().num_pages, store.stats().num_bytes) == (0, 0)


def test_an_empty_batch_is_no_work(place: Place) -> None:
    store = place.open(PLENTY)
    assert store.put([]) == 0
    assert store.get([]) == []
    assert store.contains([]) == []


def test_an_empty_page_is_a_page(place: Place) -> None:
    store = place.open(PLENTY)
    assert store.put([(page(1), b"")]) == 1
    assert store.get(names(1)) == [b""]


def test_a_large_page_comes_back_whole(place: Place) -> None:
    large = content(7, 3_000_001)
    store = place.open(4 << 20)
    assert store.put([(page(7), large)]) == 1
    assert store.get(names(7)) == [large]


def test_a_page_put_twice_is_held_once(place: Place) -> None:
    store = place.open(PLENTY)
    store.put(pages(1, 2))
    assert store.put(pages(2, 3)) == 2
    assert store.stats().num_pages == 3
    assert store.stats().num_bytes == room_for(3)


def test_the_same_page_of_two_groups_is_two_pages(place: Place) -> None:
    store = place.open(PLENTY)
    store.put([(page(1, GROUP), b"mine"), (page(1, OTHER), b"theirs")])
    assert store.get([page(1, OTHER), page(1, GROUP)]) == [b"theirs", b"mine"]


def test_what_happens_is_counted(place: Place) -> None:
    store = place.open(room_for(2))
    store.put(pages(1, 2))
    store.get(names(1, 9))
    store.put(pages(3))
    store.put([(page(4), content(4, 1000))])
    stats = store.stats()
    assert (stats.stored, stats.found, stats.missing, stats.evicted, stats.refused) == (3, 1, 1, 1, 1)


# ----------------------------------------------------------------------------------------------- bound and order of use


def test_the_bound_holds_after_many_puts(place: Place) -> None:
    store = place.open(room_for(10))
    for first in range(0, 300, 7):
        store.put(pages(*range(first, first + 7)))
        assert store.stats().num_bytes <= room_for(10)
    assert store.stats().num_pages == 10
    assert store.stats().evicted == 301 - 10
    held = store.contains(names(*range(301)))
    assert held.count(True) == 10


def test_the_page_that_nobody_used_for_longest_goes_first(place: Place) -> None:
    store = place.open(room_for(3))
    for number in (1, 2, 3):
        store.put(pages(number))
    store.get(names(1))
    store.put(pages(4))
    assert store.contains(names(1, 2, 3, 4)) == [True, False, True, True]


USES: dict[str, Callable[[PageStore], object]] = {
    "put": lambda store: store.put(pages(1)),
    "get": lambda store: store.get(names(1)),
    "contains": lambda store: store.contains(names(1)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_kind_of_use_keeps_a_page(place: Place, use: Callable[[PageStore], object]) -> None:
    store = place.open(room_for(2))
    store.put(pages(1))
    store.put(pages(2))
    use(store)
    store.put(pages(3))
    assert store.contains(names(1, 2, 3)) == [True, False, True]


def test_the_end_of_a_prefix_goes_before_its_beginning(place: Place) -> None:
    store = place.open(room_for(4))
    store.put(pages(1, 2, 3, 4))
    store.put(pages(5))
    assert store.contains(names(1, 2, 3, 4)) == [True, True, True, False]
    store.get(names(1, 2, 3))
    store.put(pages(6, 7))
    assert store.contains(names(1, 2, 3)) == [True, True, False]


def test_of_a_batch_larger_than_the_store_the_beginning_stays(place: Place) -> None:
    store = place.open(room_for(3))
    assert store.put(pages(*range(8))) == 3
    assert store.contains(names(*range(8))) == [True] * 3 + [False] * 5


def test_a_page_larger_than_the_store_is_refused_and_drops_nothing(place: Place) -> None:
    store = place.open(room_for(3))
    store.put(pages(1, 2))
    assert store.put([(page(3), content(3, 1000)), (page(4), content(4))]) == 1
    assert store.contains(names(1, 2, 3, 4)) == [True, True, False, True]


def test_a_bound_must_be_positive(place: Place) -> None:
    with pytest.raises(StoreConfigError, match=r"^storage\.max_bytes must be positive, got 0$"):
        place.open(0)


# ------------------------------------------------------------------------------------------------------------- groups


def test_a_group_is_removed_at_once_and_alone(place: Place) -> None:
    store = place.open(PLENTY)
    store.put([(page(number, GROUP), content(number)) for number in range(20)])
    store.put([(page(number, OTHER), content(number)) for number in range(5)])
    assert store.remove_group(GROUP) == 20
    assert store.contains([page(number, GROUP) for number in range(20)]) == [False] * 20
    assert store.contains([page(number, OTHER) for number in range(5)]) == [True] * 5
    assert store.stats().num_bytes == room_for(5)
    assert store.remove_group(GROUP) == 0


def test_a_removed_group_can_be_filled_again(place: Place) -> None:
    store = place.open(PLENTY)
    store.put(pages(1, 2))
    store.remove_group(GROUP)
    assert store.put(pages(1)) == 1
    assert store.get(names(1, 2)) == [content(1), None]


# --------------------------------------------------------------------------------------------------------- corruption


def flipped_at(index: int) -> Callable[[bytes], bytes]:
    def flip(frame: bytes) -> bytes:
        at = index % len(frame)
        return frame[:at] + bytes([frame[at] ^ 0x10]) + frame[at + 1 :]

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit of content": flipped_at(-1),
    "a flipped bit of the checksum": flipped_at(20),
    "a flipped bit of the length": flipped_at(9),
    "another version": flipped_at(4),
    "another program's file": flipped_at(0),
    "a lost end": lambda frame: frame[:-1],
    "a header alone": lambda frame: frame[:HEADER_BYTES],
    "half a header": lambda frame: frame[:10],
    "nothing": lambda frame: b"",
    "more than was written": lambda frame: frame + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_page_is_counted_removed_and_missing(shared: Place, damage: Callable[[bytes], bytes]) -> None:
    store = shared.open(PLENTY)
    store.put(pages(1, 2, 3))
    shared.alter(page(2), damage)
    assert store.get(names(1, 2, 3)) == [content(1), None, content(3)]
    assert store.stats().corrupt == 1
    assert store.contains(names(1, 2, 3)) == [True, False, True]
    assert store.stats().num_bytes == room_for(2)
    store.put(pages(2))
    assert store.get(names(2)) == [content(2)]


@pytest.mark.parametrize("other", [page(2), page(1, OTHER)], ids=["page", "group"])
def test_a_page_under_another_name_is_refused(shared: Place, other: PageName) -> None:
    store = shared.open(PLENTY)
    store.put([*pages(1), (other, b"another")])
    shared.alter(other, lambda _: header_of(page(1), content(1)) + content(1))
    assert store.get([page(1), other]) == [content(1), None]
    assert store.stats().corrupt == 1


def test_a_page_that_vanished_is_missing_and_no_longer_accounted_for(shared: Place) -> None:
    store = shared.open(PLENTY)
    store.put(pages(1, 2, 3))
    shared.alter(page(1), lambda _: None)
    shared.alter(page(2), lambda _: None)
    assert store.get(names(1)) == [None]
    assert store.contains(names(2)) == [False]
    assert (store.stats().missing, store.stats().corrupt) == (1, 0)
    assert store.stats().num_bytes == room_for(1)


# ------------------------------------------------------------------------------------------------------ several stores


def test_two_stores_see_each_others_pages(shared: Place) -> None:
    one, two = shared.open(PLENTY), shared.open(PLENTY)
    one.put(pages(1, 2))
    assert two.contains(names(1)) == [True]
    assert two.get(names(1, 2)) == [content(1), content(2)]
    assert two.remove_group(GROUP) == 2
    assert one.get(names(1)) == [None]


def test_pages_outlive_the_store_that_put_them(shared: Place) -> None:
    first = shared.open(PLENTY)
    first.put(pages(1, 2))
    first.close()
    second = shared.open(PLENTY)
    assert second.get(names(2, 1)) == [content(2), content(1)]


def test_the_bound_is_one_for_all_who_share(shared: Place) -> None:
    stores = [shared.open(room_for(10)) for _ in range(3)]
    for number in range(90):
        stores[number % 3].put(pages(number))
    one = shared.open(room_for(10))
    one.put(pages(90))
    assert one.stats().num_bytes <= room_for(10)
    assert one.contains(names(*range(91))).count(True) <= 10


def test_what_one_store_uses_the_other_keeps(shared: Place) -> None:
    one, two = shared.open(room_for(3)), shared.open(room_for(3))
    for number in (1, 2, 3):
        one.put(pages(number))
    two.get(names(1))
    one.put(pages(4))
    assert one.contains(names(1, 2, 3, 4)) == [True, False, True, True]


def test_a_smaller_bound_is_kept_from_the_first_put_on(shared: Place) -> None:
    shared.open(PLENTY).put(pages(*range(50)))
    small = shared.open(room_for(5))
    small.put(pages(50))
    assert small.stats().num_pages == 5
    assert small.contains(names(50)) == [True]
