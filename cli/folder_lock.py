"""Keeps a folder for one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_NAME = "serve.lock"


class FolderError(Exception):
    """A folder cannot be had; the message names it and says why, or who has it."""


@contextmanager
def folder_locked(folder: Path) -> Iterator[None]:
    """Make `folder` if need be and hold it; the system lets go of it when the process ends, however it ends.

    Raises FolderError. The lock's file stays: whoever removed it could remove another one's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / _NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise FolderError(f"the folder {folder} cannot be used: {error.strerror}") from error
    with file:
        _lock(file, folder)
        yield


def _lock(file: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise FolderError(f"another radixgate serve uses {folder} (pid {file.read().strip()})") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
