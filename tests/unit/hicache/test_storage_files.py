"""Pages as files: what a folder shared by processes that crash, fill disks and delete things must survive."""

import os
import resource
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from hicache.storage.file_store import STALE_AFTER_S, FileStore
from hicache.storage.frame import frame_size
from hicache.storage.store import PageName, StoreConfigError, StoreUnavailableError
from tests.processes import open_files, wait_until

GROUPS = [bytes([number]) * 16 for number in range(3)]
PLENTY = 1 << 20


def page(number: int, group: bytes = GROUPS[0]) -> PageName:
    return PageName(group, bytes([number % 256]) + number.to_bytes(15, "big"))


def content(name: PageName) -> bytes:
    return (name.group + name.page) * 20


def pages(*numbers: int) -> list[tuple[PageName, bytes]]:
    return [(page(number), content(page(number))) for number in numbers]


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@contextmanager
def no_file_larger_than(num_bytes: int) -> Iterator[None]:
    """As on a full disk: writing more fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_only_the_owner_may_look_into_the_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "kv", PLENTY)
    store.put(pages(1, 2))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "kv").rglob("*")}
    modes[tmp_path / "a" / "kv"] = stat.S_IMODE((tmp_path / "a" / "kv").stat().st_mode)
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_nothing_but_pages_is_left_behind(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 3 * frame_size(content(page(0))))
    for number in range(20):
        store.put(pages(number))
    store.remove_group(GROUPS[1])
    assert len(files_below(tmp_path)) == 3
    assert list((tmp_path / "tmp").iterdir()) == []


def test_folders_without_pages_go_too(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 2 * frame_size(content(page(0))))
    store.put([(page(1, GROUPS[1]), content(page(1, GROUPS[1])))])
    store.put(pages(1, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([GROUPS[0].hex(), "tmp"])


def test_what_crashed_writers_left_is_removed_at_start(tmp_path: Path) -> None:
    FileStore(tmp_path, PLENTY)
    old, fresh, group = (tmp_path / "tmp" / f"radixgate-{'0' * 16}-{number}" for number in range(3))
    removed = group / "00"
    removed.mkdir(parents=True)
    for path in (old, fresh, removed / "page"):
        path.write_bytes(b"half a page")
    long_ago = time.time() - STALE_AFTER_S - 1
    for path in (old, removed.parent):
        os.utime(path, (long_ago, long_ago))
    FileStore(tmp_path, PLENTY)
    assert list((tmp_path / "tmp").iterdir()) == [fresh]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    group = tmp_path / GROUPS[0].hex()
    strangers = [
        tmp_path / "README",
        group / "notes",
        group / "01" / "x.swp",
        tmp_path / "tmp" / "work of somebody",
        tmp_path / "tmp" / "a folder" / "of somebody",
        tmp_path / "tmp" / "radixgate-notes-1",
    ]
    long_ago = time.time() - STALE_AFTER_S - 1
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not ours")
        os.utime(path, (long_ago, long_ago))
    os.utime(tmp_path / "tmp" / "a folder", (long_ago, long_ago))
    store = FileStore(tmp_path, 2 * frame_size(content(page(0))))
    store.put(pages(*range(10)))
    assert store.stats().num_pages == 2
    assert all(path.exists() for path in strangers)


def test_the_order_of_use_outlives_the_process(tmp_path: Path) -> None:
    store = FileStore(tmp_path, PLENTY)
    for number in (1, 2, 3):
        store.put(pages(number))
    store.get([page(1)])
    reopened = FileStore(tmp_path, 3 * frame_size(content(page(0))))
    reopened.put(pages(4))
    assert reopened.contains([page(number) for number in (1, 2, 3, 4)]) == [True, False, True, True]


def test_a_smaller_bound_is_kept_from_the_start_on(tmp_path: Path) -> None:
    FileStore(tmp_path, PLENTY).put(pages(*range(20)))
    bound = 5 * frame_size(content(page(0)))
    assert FileStore(tmp_path, bound).stats().num_bytes == bound
    assert len(files_below(tmp_path)) == 5


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "kv"
    with pytest.raises(StoreConfigError, match=rf"^storage\.url: the folder {folder} cannot be used: Not a directory$"):
        FileStore(folder, PLENTY)


@pytest.mark.parametrize("folder", ["/", "//", "/home/.."])
def test_the_root_of_all_folders_is_refused(folder: str) -> None:
    with pytest.raises(StoreConfigError, match="name a folder of their own"):
        FileStore(folder, PLENTY)


def test_a_full_disk_makes_the_store_unavailable_and_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path, PLENTY)
    store.put(pages(1))
    with no_file_larger_than(200):
        with pytest.raises(StoreUnavailableError, match=f"^the folder {tmp_path} cannot be used: "):
            store.put(pages(2))
    assert store.get([page(1), page(2)]) == [content(page(1)), None]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert store.put(pages(2)) == 1


def test_a_folder_removed_under_the_store_holds_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "kv", PLENTY)
    store.put(pages(1, 2))
    shutil.rmtree(tmp_path / "kv")
    assert store.get([page(1)]) == [None]
    assert store.contains([page(2)]) == [False]
    assert store.stats().missing == 1
    assert store.remove_group(GROUPS[0]) == 0


def test_pages_are_not_written_where_the_folder_is_gone_until_it_is_back(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "kv", PLENTY)
    (tmp_path / "kv").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError):
        store.put(pages(1))
    assert not (tmp_path / "kv").exists()
    (tmp_path / "kv").mkdir()
    assert store.put(pages(1)) == 1
    assert store.get([page(1)]) == [content(page(1))]


def test_a_group_removed_by_somebody_else_can_be_filled_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path, PLENTY)
    store.put(pages(1))
    shutil.rmtree(tmp_path / GROUPS[0].hex())
    assert store.put(pages(1)) == 1


def test_a_folder_in_the_place_of_a_page_is_a_corrupt_page(tmp_path: Path) -> None:
    store = FileStore(tmp_path, PLENTY)
    name = page(1)
    (tmp_path / name.group.hex() / "01" / name.page.hex()).mkdir(parents=True)
    assert store.get([name]) == [None]
    assert store.stats().corrupt == 1


def test_a_link_in_the_place_of_a_page_is_not_followed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "kv", PLENTY)
    store.put(pages(1))
    path = tmp_path / "kv" / page(1).group.hex() / "01" / page(1).page.hex()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.get([page(1)]) == [None]
    assert (tmp_path / "elsewhere").exists()


# ----------------------------------------------------------------------------------------------------- several at once


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_file_larger_than_the_store(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 << 30)


@pytest.mark.parametrize("obstacle", [a_folder, a_link_to_itself, a_pipe, a_file_larger_than_the_store])
def test_what_is_no_page_costs_its_own_page_and_no_other(tmp_path: Path, obstacle: Callable[[Path], None]) -> None:
    store = FileStore(tmp_path, PLENTY)
    store.put(pages(1, 2))
    path = tmp_path / GROUPS[0].hex() / "01" / page(1).page.hex()
    path.unlink()
    obstacle(path)
    assert store.contains([page(2)]) == [True]
    assert len(store.contains([page(1), page(2)])) == 2
    for _ in range(3):
        assert store.get([page(1), page(2)]) == [None, content(page(2))]
    assert store.put(pages(1, 2)) == (1 if path.is_dir() else 2)
    assert not [path for path in open_files() if path.is_relative_to(tmp_path)]
    assert not list((tmp_path / "tmp").iterdir())


def test_a_file_in_the_place_of_a_folder_costs_the_pages_below_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path, PLENTY)
    (tmp_path / GROUPS[0].hex()).mkdir(0o700)
    (tmp_path / GROUPS[0].hex() / "01").touch()
    assert store.put(pages(1, 2)) == 1
    assert store.contains([page(1), page(2)]) == [False, True]


def test_a_link_in_the_place_of_a_page_is_not_followed_to_note_a_use(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "kv", PLENTY)
    store.put(pages(1))
    foreign = tmp_path / "foreign"
    foreign.touch()
    before = foreign.stat().st_mtime_ns
    path = tmp_path / "kv" / GROUPS[0].hex() / "01" / page(1).page.hex()
    path.unlink()
    path.symlink_to(foreign)
    store.contains([page(1)])
    assert foreign.stat().st_mtime_ns == before


def test_looking_around_finds_what_others_put_and_removed(tmp_path: Path) -> None:
    mine = FileStore(tmp_path, PLENTY, look_around_every_s=0.0)
    others = FileStore(tmp_path, PLENTY)
    mine.put([(page(1, GROUPS[1]), content(page(1, GROUPS[1])))])
    others.put(pages(1, 2))
    wait_until(lambda: mine.put(pages(3)) == 1 and mine.stats().num_pages == 4, what="four pages found")
    others.remove_group(GROUPS[1])
    (tmp_path / GROUPS[0].hex() / "01" / page(1).page.hex()).unlink()
    wait_until(lambda: mine.put(pages(3)) == 1 and mine.stats().num_pages == 2, what="two pages missed")


def test_many_stores_on_one_folder_never_give_a_wrong_page_and_never_fail(tmp_path: Path) -> None:
    bound = 20 * frame_size(content(page(0)))
    names = [page(number, group) for number in range(30) for group in GROUPS]

    def work(seed: int) -> FileStore:
        random = Random(seed)
        store = FileStore(tmp_path, bound, look_around_every_s=0.0)
        for _ in range(150):
            some = random.sample(names, 5)
            call = random.random()
            if call < 0.45:
                store.put([(name, content(name)) for name in some])
            elif call < 0.9:
                assert all(found in {None, content(name)} for name, found in zip(some, store.get(some), strict=True))
            elif call < 0.97:
                store.contains(some)
            else:
                store.remove_group(random.choice(GROUPS))
        return store

    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(work, range(4)))
    assert sum(store.stats().corrupt for store in stores) == 0
    FileStore(tmp_path, bound)  # looks at everything
    assert sum(path.stat().st_size for path in files_below(tmp_path)) <= bound
    assert list((tmp_path / "tmp").iterdir()) == []
