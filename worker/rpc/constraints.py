"""Requests under a constraint wait here until it is compiled: beside the event loop and the engine."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import structlog

from worker.engine.constraints import Constraint
from worker.engine.ports import Request, SequenceId
from worker.errors import Failure, FailureCode
from worker.grammar.constraints import ConstraintError, TextConstraint, TooManyConstraintsError, field_of

_log = structlog.get_logger(__name__)


class ConstraintCompiler(Protocol):
    def compile(self, constraint: TextConstraint) -> Future[Constraint]:
        """Begin to compile. The result raises ConstraintError. Raises TooManyConstraintsError."""
        ...


class Compilations:
    """The requests whose constraints are being compiled. Each is handed on, or refused, or cancelled: exactly one."""

    def __init__(
        self,
        compiler: ConstraintCompiler,
        submit: Callable[[Request], None],
        refuse: Callable[[SequenceId, Failure], None],
    ) -> None:
        self._compiler = compiler
        self._submit = submit
        self._refuse = refuse
        self._tasks: dict[SequenceId, asyncio.Task[None]] = {}

    def begin(self, request: Request, constraint: TextConstraint) -> None:
        """Compile, then submit the request held to it; returns at once."""
        task = asyncio.create_task(self._run(request, constraint), name=f"constraint of {request.sequence_id}")
        self._tasks[request.sequence_id] = task

    def cancel(self, sequence_id: SequenceId) -> bool:
        """Cancel a request if it is here; return whether it was."""
        task = self._tasks.pop(sequence_id, None)
        if task is None:
            return False
        task.cancel()
        self._refuse(sequence_id, Failure(FailureCode.CANCELLED, "the request was cancelled"))
        return True

    async def _run(self, request: Request, constraint: TextConstraint) -> None:
        try:
            compiled = await asyncio.wrap_future(self._compiler.compile(constraint))
        except ConstraintError as error:
            self._fail(request, Failure(FailureCode.INVALID_ARGUMENT, str(error), field_of(constraint)))
        except TooManyConstraintsError as error:
            self._fail(request, Failure(FailureCode.OVERLOADED, str(error)))
        except Exception:  # noqa: BLE001 - outermost for one request: its constraint is its own trouble
            _log.exception("constraint not compiled", request=request.request_id)
            self._fail(request, Failure(FailureCode.INTERNAL, "the constraint could not be compiled"))
        else:
            self._tasks.pop(request.sequence_id, None)
            self._submit(replace(request, constraint=compiled))

    def _fail(self, request: Request, failure: Failure) -> None:
        self._tasks.pop(request.sequence_id, None)
        self._refuse(request.sequence_id, failure)
