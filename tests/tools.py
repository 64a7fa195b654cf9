"""Programs that some tests need and not every machine has."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def require_tool(name: str, how_to_get: str) -> str:
    """Return the path of a program, looking beside the running Python first.

    Without it the test is skipped with instructions; under RADIXGATE_REQUIRE_TOOLS=1, as in CI, it fails.
    """
    beside_python = Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        missing(f"{name} is not installed; {how_to_get}")
    return found


def require_path(path: Path, how_to_get: str) -> Path:
    """Return `path` if it exists; otherwise skip or fail like `require_tool`."""
    if not path.exists():
        missing(f"{path.name} is not there; {how_to_get}")
    return path


def missing(message: str) -> NoReturn:
    if os.environ.get("RADIXGATE_REQUIRE_TOOLS") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
