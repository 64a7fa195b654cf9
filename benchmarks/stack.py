"""Starts the whole stack as a user would: `radixgate serve --demo`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Started, running_process

READY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack: where it answers, and its demo tenants' keys."""

    target: str
    metrics: tuple[str, ...]
    keys: dict[str, str]
    started: Started


@contextmanager
def running_stack(arguments: Sequence[str] = ()) -> Iterator[Stack]:
    """Run `radixgate serve --demo` with further `arguments` until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        ready_file = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "cli", "serve", "--demo", "--ready-file", str(ready_file), *arguments]
        with running_process(
            command, what="the stack", is_ready=ready_file.exists, timeout_s=READY_TIMEOUT_S
        ) as started:
            ready: dict[str, Any] = json.loads(ready_file.read_text())
            yield Stack(target=ready["grpc"], metrics=tuple(ready["metrics"]), keys=ready["tenants"], started=started)


def settings(**values: str | int) -> list[str]:
    """Return arguments that set `values`, by dotted names with `__` for each dot."""
    return [
        argument
        for name, value in values.items()
        for argument in ("--set", f"{name.replace('__', '.')}={json.dumps(value)}")
    ]


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark's user name a stack that runs already, or say more of the one that is started."""
    parser.add_argument("--target", help="host:port of a gateway that runs already")
    parser.add_argument("--key", help="API key for --target")
    parser.add_argument("--serve-argument", action="append", default=[], help="handed on to `radixgate serve`")


def check_stack_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the program, with a message, if what `add_stack_arguments` added doesn't go together."""
    if bool(arguments.target) != bool(arguments.key):
        parser.error("--target and --key go together")
