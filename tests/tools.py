"""Programs that some tests need and not every machine has."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
INSTALLED = REPOSITORY / ".cache" / "tools" / "bin"  # by `make tools`


def require_tool(name: str, how_to_get: str) -> str:
    """Return the path of a program, looking beside the running Python first, then where `make tools` puts things.

    Without it the test is skipped with instructions; under RADIXGATE_REQUIRE_TOOLS=1, as in CI, it fails.
    """
    ours = (folder / name for folder in (Path(sys.executable).parent, INSTALLED))
    found = next((str(path) for path in ours if path.exists()), None) or shutil.which(name)
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
