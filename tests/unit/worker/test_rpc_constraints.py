"""Requests whose constraint is being compiled: each is handed on, refused or cancelled, and exactly one of these."""

import asyncio
from concurrent.futures import Future

import numpy as np
import pytest

from hicache.keys import Namespace, PrefixKey
from tests.fakes.gateway_stack import until
from worker.batch import SamplingParams
from worker.engine.constraints import Constraint
from worker.engine.fake_constraint import FakeConstraint
from worker.engine.ports import Request, SequenceId
from worker.errors import Failure, FailureCode
from worker.grammar.constraints import Choice, ConstraintError, Regex, TextConstraint, TooManyConstraintsError
from worker.rpc.constraints import Compilations

PATIENCE_S = 10.0


class ManualCompiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[TextConstraint, Future[Constraint]]] = []
        self.is_full = False

    def compile(self, constraint: TextConstraint) -> Future[Constraint]:
        if self.is_full:
            raise TooManyConstraintsError("2 constraints wait to be compiled")
        future: Future[Constraint] = Future()
        self.asked.append((constraint, future))
        return future


class Bench:
    def __init__(self) -> None:
        self.compiler = ManualCompiler()
        self.submitted: list[Request] = []
        self.refused: list[tuple[SequenceId, Failure]] = []
        self.news = asyncio.Event()
        self.compilations = Compilations(self.compiler, self._submit, self._refuse)

    def begin(self, number: int, constraint: TextConstraint, tenant: str = "acme") -> Request:
        key = PrefixKey.of(Namespace(bytes(16)), np.array([1, 2], np.int32))
        request = Request((1, number), f"r{number}", key, SamplingParams(max_new_tokens=3), tenant)
        self.compilations.begin(request, constraint)
        return request

    async def wait(self) -> None:
        await asyncio.wait_for(self.news.wait(), PATIENCE_S)
        self.news.clear()

    def _submit(self, request: Request) -> None:
        self.submitted.append(request)
        self.news.set()

    def _refuse(self, sequence_id: SequenceId, failure: Failure) -> None:
        self.refused.append((sequence_id, failure))
        self.news.set()


async def asked(bench: Bench, number: int = 1) -> list[tuple[TextConstraint, Future[Constraint]]]:
    await until(lambda: len(bench.compiler.asked) >= number)
    return bench.compiler.asked


async def test_a_request_is_handed_on_with_its_constraint_once_that_is_compiled() -> None:
    bench = Bench()
    bench.begin(1, Regex("a"))
    ((constraint, future),) = await asked(bench)
    assert constraint == Regex("a")
    assert not bench.submitted
    compiled = FakeConstraint(10, length=2)
    future.set_result(compiled)
    await bench.wait()
    assert [(each.sequence_id, each.constraint) for each in bench.submitted] == [((1, 1), compiled)]
    assert not bench.compilations.cancel((1, 1))


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        (ConstraintError("no text fulfils it"), FailureCode.INVALID_ARGUMENT, "sampling.choice"),
        (RuntimeError("/secret/path"), FailureCode.INTERNAL, ""),
    ],
)
async def test_what_cannot_be_compiled_is_refused(error: Exception, code: FailureCode, field: str) -> None:
    bench = Bench()
    bench.begin(1, Choice(("a",)))
    ((_, future),) = await asked(bench)
    future.set_exception(error)
    await bench.wait()
    ((sequence_id, failure),) = bench.refused
    assert (sequence_id, failure.code, failure.field) == ((1, 1), code, field)
    assert "secret" not in failure.message
    assert not bench.submitted


async def test_where_too_many_wait_the_request_is_refused_as_overload() -> None:
    bench = Bench()
    bench.compiler.is_full = True
    bench.begin(1, Regex("a"))
    await bench.wait()
    assert [failure.code for _, failure in bench.refused] == [FailureCode.OVERLOADED]


async def test_a_request_that_is_cancelled_meanwhile_never_reaches_the_engine() -> None:
    bench = Bench()
    bench.begin(1, Regex("a"))
    bench.begin(2, Regex("b"), tenant="other")
    (_, first), (_, second) = await asked(bench, 2)
    assert bench.compilations.cancel((1, 1))
    assert not bench.compilations.cancel((1, 1))
    second.set_result(FakeConstraint(10, length=2))
    await bench.wait()
    await until(lambda: first.cancelled() and len(bench.submitted) == 1)
    assert [each.sequence_id for each in bench.submitted] == [(1, 2)]
    assert [(of, failure.code) for of, failure in bench.refused] == [((1, 1), FailureCode.CANCELLED)]


async def test_one_cancelled_before_it_was_even_asked_for_is_told_so() -> None:
    bench = Bench()
    bench.begin(1, Regex("a"))
    assert bench.compilations.cancel((1, 1))
    await bench.wait()
    assert [failure.code for _, failure in bench.refused] == [FailureCode.CANCELLED]
    await asyncio.sleep(0)
    assert not bench.submitted


async def test_a_tenant_has_one_constraint_compiled_at_a_time_and_others_do_not_wait_for_its() -> None:
    bench = Bench()
    for number in range(5):
        bench.begin(number, Regex(f"{number}"))
    bench.begin(9, Regex("other"), tenant="other")
    (first, done), (other, _) = await asked(bench, 2)
    assert (first, other) == (Regex("0"), Regex("other"))
    done.set_result(FakeConstraint(10, length=2))
    assert (await asked(bench, 3))[2][0] == Regex("1")
    assert len(bench.compiler.asked) == 3


async def test_one_that_is_cancelled_while_it_waits_or_compiles_makes_room_for_the_tenants_next() -> None:
    bench = Bench()
    for number in range(3):
        bench.begin(number, Regex(f"{number}"))
    await asked(bench, 1)
    assert bench.compilations.cancel((1, 1))
    assert bench.compilations.cancel((1, 0))
    assert (await asked(bench, 2))[1][0] == Regex("2")


async def test_a_tenant_that_cancels_has_its_next_turn_when_the_thread_is_free() -> None:
    bench = Bench()
    bench.begin(0, Regex("0"))
    bench.begin(1, Regex("1"))
    ((_, compiling),) = await asked(bench, 1)
    assert compiling.set_running_or_notify_cancel()
    assert bench.compilations.cancel((1, 0))
    bench.begin(9, Regex("other"), tenant="other")
    assert (await asked(bench, 2))[1][0] == Regex("other")
    compiling.set_result(FakeConstraint(10, length=2))
    assert (await asked(bench, 3))[2][0] == Regex("1")
    assert not bench.submitted


async def test_a_tenant_that_floods_is_refused_and_no_other() -> None:
    bench = Bench()
    for number in range(300):
        bench.begin(number, Regex(f"{number}"))
    bench.begin(999, Regex("other"), tenant="other")
    await until(lambda: len(bench.refused) == 44)
    assert {failure.code for _, failure in bench.refused} == {FailureCode.OVERLOADED}
    assert (await asked(bench, 2))[1][0] == Regex("other")
