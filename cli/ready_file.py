"""A file that appears, whole, when a process is ready, and says where."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_ready_file(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically: a reader finds nothing or all of it. Readable by the owner only: it may hold keys."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """Return the content, or None while there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content
