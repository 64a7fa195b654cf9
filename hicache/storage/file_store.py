"""Pages as files in a folder, which several processes may share.

    FOLDER/GROUP/FI/PAGE      group and page in hex, FI the page's first two digits; 0700 and 0600: KV is tenant data
    FOLDER/tmp/radixgate-…    being written, or being removed; whatever else lies in these folders is somebody else's

A file comes into being whole, by a rename; one that a crash of the machine tore is caught by its checksum, so nothing
is synced. The time of last use is the file's mtime. Each process has its own index of the folder and looks around
now and then for what the others did: the bound holds exactly for one process and within a second's writes for more.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hicache.keys import PAGE_HASH_BYTES
from hicache.storage.folder_index import FolderIndex, Shard, shard_of
from hicache.storage.frame import HEADER_BYTES, content_of, frame_size, header_of
from hicache.storage.store import (
    GROUP_BYTES,
    PageName,
    StoreConfigError,
    StoreCounts,
    StoreStats,
    StoreUnavailableError,
    check_limit,
)

STALE_AFTER_S: Final = 60.0  # nobody takes so long to write one page

# Only what is called like this is ever removed from FOLDER/tmp, which may be there for others, too: /tmp, /var/tmp.
_OWN_TEMPORARY: Final = re.compile("radixgate-[0-9a-f]{16}-[0-9]+")
_LOOK_S: Final = 0.002  # for looking around in one `put`
_TRIES: Final = 20  # of what another process can undo at any moment
_MISSING: Final = (FileNotFoundError, NotADirectoryError)
# Of reading one file, these say that it is not this file's fault.
_AWAY: Final = {errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EMFILE, errno.ENFILE}
# Something that is no page lies where one belongs: that costs this page alone.
_OBSTRUCTED: Final = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP}


# The file in a folder that tells it from any other one.
_IDENTITY: Final = "identity"


class FileStore:
    """A folder of pages. Its index may lag behind what other processes do; a file that vanished is a miss."""

    name = "file"

    def __init__(self, folder: str | Path, max_bytes: int, *, look_around_every_s: float = 1.0) -> None:
        """Make the folder where there is none and find out what it holds. Raises StoreConfigError."""
        check_limit("storage.max_bytes", max_bytes)
        if not os.path.realpath(folder).strip("/"):
            raise StoreConfigError(
                "storage.url: the root of all folders is no place for pages, name a folder of their own"
            )
        self._folder = str(folder)
        self._temporary = os.path.join(self._folder, "tmp")
        self._max_bytes = max_bytes
        self._look_around_every_s = look_around_every_s
        self._token = secrets.token_hex(8)  # no two writers make the same temporary file
        self._num_temporary = 0
        self._last_used_ns = 0
        self._index = FolderIndex()
        self._counts = StoreCounts()
        self._unfinished_round: Iterator[None] | None = None
        self._next_round_s = time.monotonic() + look_around_every_s
        try:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            os.makedirs(self._temporary, mode=0o700, exist_ok=True)
            os.close(self._create(probe := self._temporary_path()))
            os.unlink(probe)
            for _ in self._round():
                pass
            self._evict()
        except OSError as error:
            raise StoreConfigError(
                f"storage.url: the folder {self._folder} cannot be used: {error.strerror}"
            ) from error

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        with self._one_error():
            for (name, content), used_ns in zip(pages, self._times_of_use(len(pages)), strict=True):
                if frame_size(content) > self._max_bytes:
                    self._counts.refused += 1
                    continue
                if self._write(name, content, used_ns):
                    self._index.record(name, frame_size(content), used_ns)
                    self._counts.stored += 1
            self._look_around()
            self._evict()
        return sum(name in self._index for name, _ in pages)

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        times = self._times_of_use(len(names))
        return [self._read(name, used_ns) for name, used_ns in zip(names, times, strict=True)]

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        times = self._times_of_use(len(names))
        with self._one_error():
            return [self._touch(name, used_ns) for name, used_ns in zip(names, times, strict=True)]

    def remove_group(self, group: bytes) -> int:
        removed = self._temporary_path()
        with self._one_error():
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(self._temporary, 0o700)
            try:
                os.rename(os.path.join(self._folder, group.hex()), removed)  # out of reach at once
            except FileNotFoundError:
                num_pages = 0
            else:
                num_pages = sum(len(files) for _, _, files in os.walk(removed))
                _remove_tree(removed)
        self._index.forget_group(group)
        return num_pages

    def stats(self) -> StoreStats:
        return self._counts.stats(self._index.num_pages, self._index.num_bytes)

    def close(self) -> None:
        """Nothing is open between two calls."""

    # ----------------------------------------------------------------------------------------------------- one page

    def _write(self, name: PageName, content: bytes, used_ns: int) -> bool:
        """Store a page; False where something else lies in its place."""
        temporary = self._temporary_path()
        try:
            file = self._create(temporary)
        except FileNotFoundError:
            os.mkdir(self._temporary, 0o700)  # fails where the whole folder is gone: it may be a disk not mounted
            file = self._create(temporary)
        try:
            try:
                header = header_of(name, content)
                if os.writev(file, (header, content)) != HEADER_BYTES + len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.utime(file, ns=(used_ns, used_ns))
            finally:
                os.close(file)
            self._move_in(temporary, name)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            if error.errno in _OBSTRUCTED:
                self._index.forget(name)
                return False
            raise
        return True

    def _move_in(self, temporary: str, name: PageName) -> None:
        path = self._path(name)
        shard = os.path.dirname(path)
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                os.rename(temporary, path)
                return
            # The first page of its shard; or another process has just removed the folder, empty as it was.
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(shard), 0o700)  # fails where the whole folder is gone
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(shard, 0o700)
        os.rename(temporary, path)

    def _read(self, name: PageName, used_ns: int) -> bytes | None:
        """Return the content of a page; what is wrong with one page is counted, and costs that page alone."""
        try:
            content = self._verified(name, used_ns)
        except _MISSING:
            self._index.forget(name)
            self._counts.missing += 1
            return None
        except OSError as error:
            if error.errno in _AWAY:
                raise self._away(error) from error
            content = None
        if content is None:
            self._counts.corrupt += 1
            self._remove(name)
            return None
        self._index.record(name, frame_size(content), used_ns)
        self._counts.found += 1
        return content

    def _verified(self, name: PageName, used_ns: int) -> bytes | None:
        """Return the content of a page, and note its use; None for what is no page of this name."""
        # Without O_NONBLOCK, opening a pipe would wait for whoever writes to it.
        file = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_size > self._max_bytes:
                return None
            with open(file, "rb", buffering=0, closefd=False) as opened:
                content = content_of(name, opened.readall())
            if content is not None:
                os.utime(file, ns=(used_ns, used_ns))
            return content
        finally:
            os.close(file)

    def _touch(self, name: PageName, used_ns: int) -> bool:
        path = self._path(name)
        try:
            os.utime(path, ns=(used_ns, used_ns), follow_symlinks=False)
            num_bytes = self._index[name].num_bytes if name in self._index else os.lstat(path).st_size
        except _MISSING:
            self._index.forget(name)
            return False
        self._index.record(name, num_bytes, used_ns)
        return True

    def _remove(self, name: PageName) -> None:
        """Remove a page, and the folders that it leaves empty."""
        path = self._path(name)
        with suppress(OSError):
            os.unlink(path)
        self._index.forget(name)
        if not self._index.pages(shard_of(name)):
            shard = os.path.dirname(path)
            with suppress(OSError):  # not empty after all: another process has put something there
                os.rmdir(shard)
                os.rmdir(os.path.dirname(shard))

    # ---------------------------------------------------------------------------------------------------- all pages

    def _evict(self) -> None:
        while self._index.num_bytes > self._max_bytes and (name := self._index.oldest()) is not None:
            try:
                found = os.lstat(self._path(name))
            except _MISSING:
                self._index.forget(name)
                continue
            if found.st_mtime_ns > self._index[name].used_ns:
                self._index.record(name, found.st_size, found.st_mtime_ns)  # another process has used it
                continue
            self._remove(name)
            self._counts.evicted += 1

    def _look_around(self) -> None:
        """Go on comparing the index with the folder, for a moment."""
        now = time.monotonic()
        if self._unfinished_round is None:
            if now < self._next_round_s:
                return
            self._unfinished_round = self._round()
        for _ in self._unfinished_round:
            if time.monotonic() > now + _LOOK_S:
                return
        self._unfinished_round = None
        self._next_round_s = time.monotonic() + self._look_around_every_s

    def _round(self) -> Iterator[None]:
        """Compare the whole index with the folder, shard by shard."""
        self._remove_left_overs()
        known = self._index.shards()
        for group in _hex_names(self._folder, GROUP_BYTES):
            for first_byte in _hex_names(os.path.join(self._folder, group), 1):
                shard = (bytes.fromhex(group), int(first_byte, 16))
                known.discard(shard)
                self._compare(shard)
                yield
        for shard in known:
            self._index.forget_shard(shard)

    def _compare(self, shard: Shard) -> None:
        group, first_byte = shard
        folder = os.path.join(self._folder, group.hex(), f"{first_byte:02x}")
        there = {bytes.fromhex(page) for page in _hex_names(folder, PAGE_HASH_BYTES)}
        known = set(self._index.pages(shard))
        for page in known - there:
            self._index.forget(PageName(group, page))
        for page in there - known:
            name = PageName(group, page)
            with suppress(*_MISSING):
                found = os.lstat(self._path(name))
                self._index.record(name, found.st_size, found.st_mtime_ns)

    def _remove_left_overs(self) -> None:
        """Remove what writers that crashed have left half done."""
        with suppress(*_MISSING), os.scandir(self._temporary) as entries:
            for entry in entries:
                if not _OWN_TEMPORARY.fullmatch(entry.name):
                    continue
                with suppress(*_MISSING):
                    if entry.stat(follow_symlinks=False).st_mtime > time.time() - STALE_AFTER_S:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        _remove_tree(entry.path)
                    else:
                        os.unlink(entry.path)

    # --------------------------------------------------------------------------------------------- names and errors

    def _path(self, name: PageName) -> str:
        page = name.page.hex()
        return f"{self._folder}/{name.group.hex()}/{page[:2]}/{page}"

    def _temporary_path(self) -> str:
        self._num_temporary += 1
        return f"{self._temporary}/radixgate-{self._token}-{self._num_temporary}"

    def _create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _times_of_use(self, num_pages: int) -> list[int]:
        """Return a time for each page of a batch: the first has the latest, and all are later than any batch before."""
        start = max(time.time_ns(), self._last_used_ns + 1)
        self._last_used_ns = start + num_pages
        return [start + num_pages - index for index in range(num_pages)]

    def _away(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"the folder {self._folder} cannot be used: {error.strerror}")

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._away(error) from error


def _remove_tree(folder: str) -> None:
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        # A writer had found the folder before it was moved, and has just put a page there.


def _hex_names(folder: str, num_bytes: int) -> list[str]:
    """Return the names in a folder that stand for so many bytes; what else lies there is not ours."""
    try:
        names = os.listdir(folder)
    except _MISSING:
        return []
    return [name for name in names if len(name) == 2 * num_bytes and set(name) <= set("0123456789abcdef")]


def folder_identity(folder: str) -> str:
    """Return what tells a folder of pages from any other, on whatever machine and under whatever path it is seen.

    Where no file can be made that says it, that is the path.
    """
    told, drafted = os.path.join(folder, _IDENTITY), os.path.join(folder, f"{_IDENTITY}-{secrets.token_hex(8)}")
    try:
        if not os.path.exists(told):
            with open(drafted, "x", encoding="ascii") as draft:
                draft.write(secrets.token_hex(16))
            try:
                with suppress(FileExistsError):
                    os.link(drafted, told)  # whole, and only if nobody else was first
            finally:
                os.unlink(drafted)
        with open(told, encoding="ascii") as told_by_the_first:
            return told_by_the_first.read()
    except OSError:
        return os.path.realpath(folder)
