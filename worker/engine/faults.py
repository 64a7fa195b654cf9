"""How the engine logs what it survives."""

import contextlib
import traceback

import structlog

_log = structlog.get_logger("worker.engine")


def report(event: str, error: Exception, **fields: object) -> None:
    """Log that `event` happened because of `error`, with its traceback.

    Without the variables in its frames, for those hold prompts: a renderer that shows locals must not get hold of the
    exception itself. A log that can't be written (a closed pipe) is no reason to fail as well.
    """
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        _log.error(event, error=type(error).__name__, traceback=text, **fields)
