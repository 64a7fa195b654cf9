"""The settings of each of several workers on this machine, from what was set for one."""

import os
import re
from copy import deepcopy
from pathlib import Path

from cli.config import Tree, config_from, is_set, set_at
from cli.validation import ConfigError, Fault
from worker.model.control_group import memory_left_bytes
from worker.model.memory import default_pool_bytes

_WORKER_ID = ("worker", "worker_id")
_LISTENERS = (("worker", "listen"), ("worker", "metrics_listen"))
_SIZES = (("worker", "cache", "num_slots"), ("worker", "cache", "memory_bytes"))
_THREADS = ("worker", "model", "threads")


def worker_trees(tree: Tree, num_workers: int) -> list[Tree]:
    """Return the settings of each worker: what was set is each one's, what was not they share.

    Ids get a number, and each worker listens one port above the one before it (0: all take free ones). Of cores, and of
    the memory that one worker would take for its pool, each gets an equal part.

    Raises ConfigError for a port that there is not.
    """
    if num_workers == 1:
        return [deepcopy(tree)]
    return [_of(tree, number, num_workers) for number in range(num_workers)]


def _of(tree: Tree, number: int, num_workers: int) -> Tree:
    config, own = config_from(tree).worker, deepcopy(tree)
    set_at(own, _WORKER_ID, f"{config.worker_id if is_set(tree, _WORKER_ID) else 'worker'}-{number}")
    for path, address in zip(_LISTENERS, (config.listen, config.metrics_listen), strict=True):
        host, _, port = address.rpartition(":")
        if int(port):
            set_at(own, path, f"{host}:{_port(path, int(port) + number)}")
    if config.simulation.enabled:
        return own
    if not any(is_set(tree, path) for path in _SIZES):
        set_at(own, _SIZES[1], max(1, default_pool_bytes(_available_bytes()) // num_workers))
    if not is_set(tree, _THREADS):
        set_at(own, _THREADS, max(1, len(os.sched_getaffinity(0)) // num_workers))
    return own


def _port(path: tuple[str, ...], port: int) -> int:
    if port > 65_535:
        raise ConfigError([Fault(".".join(path), f"leaves no port for every worker: the last one would have {port}")])
    return port


def _available_bytes() -> int:
    """Memory that could be taken now."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, "Linux has it"
    available, left = int(found.group(1)) * 1024, memory_left_bytes()
    return available if left is None else min(available, left)
