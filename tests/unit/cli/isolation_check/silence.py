"""A reporter for tests that look at results alone."""

from types import TracebackType
from typing import Self


class SilentReporter:
    """Fits cli.progress.Reporter."""

    def report(self, stage: str, fraction: float) -> None:
        pass

    def finish(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass
