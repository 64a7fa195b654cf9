"""What this process's control group leaves it of memory: in a container, less than what the machine has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Files:
    """What the kernel calls things, in one version of control groups."""

    limit: str
    used: str
    reclaimable: str  # in memory.stat: cached files that nobody looked at lately


_VERSION_2: Final = _Files("memory.max", "memory.current", "inactive_file")
_VERSION_1: Final = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_left_bytes(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int | None:
    """Return how much this process may still take before the kernel ends it; None where no group has a limit.

    What a group uses includes the files it has read, weights for one; those not in use are given up first, and do not
    count. A group is limited by those it is in as well.
    """
    left = [_left_in(folder, files) for folder, files in _groups(root, membership)]
    return min((num_bytes for num_bytes in left if num_bytes is not None), default=None)


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, _Files]]:
    """The groups of this process, and all those around them."""
    for line in _read(membership).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, files = root, _VERSION_2
        elif "memory" in controllers.split(","):
            base, files = root / "memory", _VERSION_1
        else:
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            yield base / each, files


def _left_in(folder: Path, files: _Files) -> int | None:
    limit, used = _read(folder / files.limit).strip(), _read(folder / files.used).strip()
    if not (limit.isdigit() and used.isdigit()):
        return None  # "max", or a group without such files
    return max(0, int(limit) - int(used) + _reclaimable(folder, files))


def _reclaimable(folder: Path, files: _Files) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, num_bytes = line.partition(" ")
        if name == files.reclaimable:
            return int(num_bytes)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
