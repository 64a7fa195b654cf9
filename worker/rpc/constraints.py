"""Requests under a constraint wait here until it is compiled: beside event loop and engine, tenant by tenant."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import structlog

from worker.engine.constraints import Constraint
from worker.engine.ports import Request, SequenceId
from worker.errors import Failure, FailureCode
from worker.grammar.constraints import ConstraintError, TextConstraint, TooManyConstraintsError, field_of

_log = structlog.get_logger(__name__)

_MAX_WAITING_OF_TENANT = 256


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
        self._turns = _Turns()

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
            async with self._turns.of(request.tenant):
                compiled = await _result(self._compiler.compile(constraint))
        except ConstraintError as error:
            self._fail(request, Failure(FailureCode.INVALID_ARGUMENT, str(error), field_of(constraint)))
        except TooManyConstraintsError as error:
            self._fail(request, Failure(FailureCode.OVERLOADED, str(error)))
        except Exception:  # noqa: BLE001 - outermost for one request: its constraint is its own trouble
            _log.exception("constraint not compiled", request_id=request.request_id)
            self._fail(request, Failure(FailureCode.INTERNAL, "the constraint could not be compiled"))
        else:
            self._tasks.pop(request.sequence_id, None)
            self._submit(replace(request, constraint=compiled))

    def _fail(self, request: Request, failure: Failure) -> None:
        self._tasks.pop(request.sequence_id, None)
        self._refuse(request.sequence_id, failure)


async def _result(compiling: Future[Constraint]) -> Constraint:
    """Wait for a constraint; who is cancelled meanwhile still waits for the thread that is at work on it."""
    try:
        return await asyncio.wrap_future(compiling)
    except asyncio.CancelledError:
        await asyncio.wait({asyncio.wrap_future(compiling)})
        raise


class _Turns:
    """Each tenant has one constraint compiled at a time: the other threads are for others, whatever it sends."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}  # of tenants that have something here
        self._num_waiting: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the tenant's turn, which lasts as long as the context. Raises TooManyConstraintsError."""
        number = self._num_waiting.get(tenant, 0)
        if number >= _MAX_WAITING_OF_TENANT:
            raise TooManyConstraintsError(f"{number} constraints of this tenant wait to be compiled")
        self._num_waiting[tenant] = number + 1
        try:
            async with self._locks.setdefault(tenant, asyncio.Lock()):
                yield
        finally:
            self._num_waiting[tenant] -= 1
            if not self._num_waiting[tenant]:
                del self._num_waiting[tenant], self._locks[tenant]
