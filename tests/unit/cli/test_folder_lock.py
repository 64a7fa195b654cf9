import os
from pathlib import Path

import pytest

from cli.folder_lock import FolderError, folder_locked


def test_a_folder_that_is_held_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with folder_locked(folder):
        with pytest.raises(FolderError) as caught:
            with folder_locked(folder):
                pass
    assert str(caught.value) == f"another radixgate serve uses {folder} (pid {os.getpid()})"


def test_a_folder_that_was_let_go_can_be_had(tmp_path: Path) -> None:
    for _ in range(2):
        with folder_locked(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"the folder .*/file cannot be used: File exists"):
        with folder_locked(tmp_path / "file"):
            pass
