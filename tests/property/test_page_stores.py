"""Every store of pages against a dict: the same answers, the same bound and the same victims, whatever is asked."""

import tempfile
from collections import OrderedDict
from collections.abc import Sequence

import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.embedded_redis import EmbeddedRedis
from hicache.storage.file_store import FileStore
from hicache.storage.frame import HEADER_BYTES
from hicache.storage.memory import MemoryStore
from hicache.storage.redis_store import RedisStore
from hicache.storage.store import PageName, PageStore

MAX_BYTES = 400
GROUPS = [bytes([number]) * 16 for number in range(3)]
NAMES = [PageName(group, bytes([number]) * 16) for group in GROUPS for number in range(6)]


def content_of(name: PageName) -> bytes:
    """The name says what the content is: 0, 20, … 100 bytes."""
    return name.group[:1] * (20 * name.page[0])


class Model:
    """What a store is: pages in order of use, the one used last at the end."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[PageName, int] = OrderedDict()

    def put(self, names: Sequence[PageName]) -> int:
        for name in reversed(names):
            self._sizes.pop(name, None)
            self._sizes[name] = HEADER_BYTES + len(content_of(name))
        while self.num_bytes > MAX_BYTES:
            self._sizes.popitem(last=False)
        return sum(name in self._sizes for name in names)

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        for name in reversed(names):
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return [name in self._sizes for name in names]

    def remove_group(self, group: bytes) -> int:
        gone = [name for name in self._sizes if name.group == group]
        for name in gone:
            del self._sizes[name]
        return len(gone)

    @property
    def num_pages(self) -> int:
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes.values())


BATCHES = st.lists(st.sampled_from(NAMES), max_size=6, unique=True)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), BATCHES),
        st.tuples(st.just("get"), BATCHES),
        st.tuples(st.just("contains"), BATCHES),
        st.tuples(st.just("remove_group"), st.sampled_from(GROUPS)),
    ),
    max_size=25,
)
Calls = list[tuple[str, list[PageName] | bytes]]


def compare(store: PageStore, calls: Calls) -> None:
    model = Model()
    for call, asked in calls:
        if isinstance(asked, bytes):
            assert store.remove_group(asked) == model.remove_group(asked)
        elif call == "put":
            assert store.put([(name, content_of(name)) for name in asked]) == model.put(asked)
        elif call == "get":
            expected = zip(asked, model.contains(asked), strict=True)
            assert store.get(asked) == [content_of(name) if there else None for name, there in expected]
        else:
            assert store.contains(asked) == model.contains(asked)
        if asked:  # an empty batch asks nobody
            assert (store.stats().num_pages, store.stats().num_bytes) == (model.num_pages, model.num_bytes)


@given(calls=CALLS)
def test_a_memory_store_is_a_bounded_dict(calls: Calls) -> None:
    compare(MemoryStore(MAX_BYTES), calls)


@given(calls=CALLS)
@settings(max_examples=50)
def test_a_file_store_is_a_bounded_dict(calls: Calls) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(FileStore(folder, MAX_BYTES, look_around_every_s=0.0), calls)
        reopened = FileStore(folder, MAX_BYTES)
        held = [name for name in NAMES if reopened.contains([name])[0]]
        assert reopened.stats().num_bytes == sum(HEADER_BYTES + len(content_of(name)) for name in held)


@given(calls=CALLS)
@settings(max_examples=50)
def test_a_redis_store_is_a_bounded_dict(redis_server: EmbeddedRedis, calls: Calls) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    store = RedisStore(redis_server.url, ttl_s=1000.0, max_bytes=MAX_BYTES, timeout_s=5.0)
    compare(store, calls)
    store.close()
