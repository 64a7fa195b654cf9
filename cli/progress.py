"""Shows how far long work is: a bar on a terminal, a line per stage elsewhere, lines of JSON for a supervisor.

All fit the worker's progress reporter by shape.
"""

import json
import sys
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

# The stage that a gateway reports as done when it has found a worker.
CONNECTING = "Connecting gateway and worker"


class Reporter(Protocol):
    """Told of stages and how far each is, from 0 to 1; a context that ends with the work, at the latest."""

    def report(self, stage: str, fraction: float) -> None: ...

    def finish(self) -> None:
        """Leave the terminal to others. Finishing twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def reporter_for(console: Console) -> Reporter:
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class BarProgress:
    """Bars on a terminal, one for each stage."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, fraction: float) -> None:
        task = self._tasks.get(stage)
        if task is None:
            task = self._tasks[stage] = self._progress.add_task(stage, total=1.0)
        self._progress.update(task, completed=min(fraction, 1.0))

    def finish(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()


class LineProgress:
    """One line when a stage begins and one when it has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def report(self, stage: str, fraction: float) -> None:
        if stage not in self._begun:
            self._begun.add(stage)
            self._print(f"{stage} …")
        if fraction >= 1 and stage not in self._ended:
            self._ended.add(stage)
            self._print(f"{stage}: done")

    def finish(self) -> None:
        return

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return


class JsonProgress:
    """A line of JSON per report, for `parse_progress` at the other end of a pipe."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream

    def report(self, stage: str, fraction: float) -> None:
        print(json.dumps({"stage": stage, "fraction": fraction}), file=self._stream, flush=True)

    def finish(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return


def parse_progress(line: str) -> tuple[str, float] | None:
    """Return stage and fraction of a line of JsonProgress, or None for any other line."""
    try:
        content: Any = json.loads(line)
        return str(content["stage"]), float(content["fraction"])
    except (ValueError, KeyError, TypeError):
        return None
