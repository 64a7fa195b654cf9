"""What the machine offers this process: cores, memory, number formats. Limits of its control group count."""

import os
import re
from pathlib import Path

import torch

from worker.model.control_group import memory_left_bytes

_CGROUP = Path("/sys/fs/cgroup")
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def usable_cores() -> int:
    """Cores this process may use, by affinity and by CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _read(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def available_memory_bytes(device: torch.device) -> int:
    """Memory that could be taken now without swapping or being killed."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    [available_kib] = re.findall(r"^MemAvailable: +(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE)
    available = int(available_kib) * 1024
    left = memory_left_bytes()
    return available if left is None else min(available, left)


def has_native_bf16(device: torch.device) -> bool:
    """Whether products of bfloat16 run in hardware; in software they are slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # "flags" on x86, "Features" on Arm.
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return listed is not None and not _BF16_FLAGS.isdisjoint(listed.group(1).split())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
