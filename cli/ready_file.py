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


def written_by() -> dict[str, Any]:
    """Return what tells readers of a ready file who has written it."""
    return {"pid": os.getpid(), "pid_namespace": _pid_namespace()}


def writer_is_gone(content: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a ready file is known to have ended: one that is killed cannot remove its file."""
    pid = content.get("pid")
    if not isinstance(pid, int) or content.get("pid_namespace") != _pid_namespace():
        return False  # in another container it has another number
    return not Path(f"/proc/{pid}").exists()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """Return the content, or None while there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content
