"""How loading tells a person what it is doing; the command line renders it."""

from typing import Protocol


class ProgressReporter(Protocol):
    def report(self, stage: str, fraction: float) -> None:
        """`stage` is a short sentence for people; `fraction` runs from 0 to 1 within the stage and ends at 1."""
        ...


class SilentProgress:
    """For callers that show nothing."""

    def report(self, stage: str, fraction: float) -> None:
        return
