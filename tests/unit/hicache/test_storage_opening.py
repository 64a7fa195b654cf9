"""From a URL to a store, and what is said of one that makes none."""

from pathlib import Path

import pytest

from hicache.errors import InvalidKeyError
from hicache.storage.file_store import FileStore
from hicache.storage.memory import MemoryStore
from hicache.storage.opening import SCHEMES, StoreLimits, identity_of, open_store
from hicache.storage.redis_store import RedisStore
from hicache.storage.store import PageName, PageStore, StoreConfigError, StoreUnavailableError


def test_each_scheme_opens_its_store(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}"), FileStore)
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store("redis://localhost:6379/0"), RedisStore)
    assert isinstance(open_store("rediss://user:password@redis.example:6380"), RedisStore)


def test_a_path_may_have_spaces(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/my%20pages")
    assert (tmp_path / "my pages").is_dir()


def test_the_limits_reach_the_store() -> None:
    store = open_store("memory://", StoreLimits(max_bytes=100))
    assert store.put([(PageName(bytes(16), bytes(16)), bytes(100))]) == 0


@pytest.mark.parametrize("field", ["max_bytes", "ttl_s", "timeout_s"])
def test_limits_must_be_positive(field: str) -> None:
    limits = StoreLimits(**{"max_bytes": 1, "ttl_s": 1.0, "timeout_s": 1.0} | {field: 0})  # type: ignore[arg-type]
    with pytest.raises(StoreConfigError, match=rf"^storage\.{field} must be positive, got 0$"):
        open_store("redis://localhost:6379/0", limits)


@pytest.mark.parametrize("url", ["", "file", "/var/kv", "s3://bucket", "file:/var/kv", "redis", "s3cret"])
def test_an_unknown_scheme_is_answered_with_those_there_are(url: str) -> None:
    with pytest.raises(StoreConfigError) as caught:
        open_store(url)
    assert str(caught.value) == "storage.url must begin with one of file://, memory://, redis://, rediss://"


@pytest.mark.parametrize("url", ["file://", "file://relative/kv", "file:///kv?size=3", "file:///kv%00"])
def test_a_folder_needs_its_full_path(url: str) -> None:
    with pytest.raises(StoreConfigError, match=r"^storage\.url must "):
        open_store(url)


BAD_REDIS = [
    "redis://:s3cret@/0",
    "redis://:s3cret@host:s3cret/0",
    "redis://:s3cret@host:99999999/0",
    "redis://:s3cret@host:6379/s3cret",
    "redis://:s3cret@host:6379/0?socket_timeout=s3cret",
    "redis://:s3cret@host:6379/0?s3cret=1",
    "redis://:s3cret@[host/0",
    "memory://s3cret",
    "file://s3cret@host/kv",
]


@pytest.mark.parametrize("url", BAD_REDIS)
def test_no_error_repeats_a_password(url: str) -> None:
    with pytest.raises(StoreConfigError, match=r"storage\.url") as caught:
        open_store(url)
    error: BaseException | None = caught.value
    assert "s3cret" not in str(error)
    assert error is not None
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_a_store_does_not_show_its_password() -> None:
    store = open_store("redis://user:s3cret@localhost:1/0", StoreLimits(timeout_s=0.5))
    assert "s3cret" not in repr(store)
    with pytest.raises(StoreUnavailableError) as caught:
        store.contains([PageName(bytes(16), bytes(16))])
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).startswith("Redis at localhost:1 cannot be used: ConnectionError: ")


def test_another_scheme_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_other(url: str, limits: StoreLimits) -> PageStore:
        return MemoryStore(limits.max_bytes)

    monkeypatch.setitem(SCHEMES, "other", open_other)
    assert isinstance(open_store("other://somewhere"), MemoryStore)


@pytest.mark.parametrize(("group", "page", "field"), [(b"", bytes(16), "group"), (bytes(16), bytes(17), "page")])
def test_a_name_has_two_times_sixteen_bytes(group: bytes, page: bytes, field: str) -> None:
    with pytest.raises(InvalidKeyError, match=f"^{field} must be 16 bytes, got "):
        PageName(group, page)


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("redis://cache", "redis cache:6379/0"),
        ("redis://name:secret@cache:7000/3", "redis cache:7000/3"),
        ("rediss://:secret@cache/3", "redis cache:6379/3"),
        ("memory://", ""),
    ],
)
def test_a_store_is_known_by_where_it_is_and_not_by_who_may_use_it(url: str, identity: str) -> None:
    assert identity_of(url) == identity


def test_a_folder_is_known_by_what_lies_in_it(tmp_path: Path) -> None:
    one, other, moved = tmp_path / "one", tmp_path / "other", tmp_path / "moved"
    for folder in (one, other):
        open_store(folder.as_uri()).close()
    known = identity_of(one.as_uri())
    assert known == identity_of(one.as_uri()) != identity_of(other.as_uri())
    one.rename(moved)
    assert identity_of(moved.as_uri()) == known
    assert sorted(each.name for each in moved.iterdir()) == ["identity", "tmp"]


def test_a_folder_that_is_gone_is_known_by_its_path(tmp_path: Path) -> None:
    assert identity_of((tmp_path / "gone").as_uri()) == f"folder {tmp_path / 'gone'}"
