"""How a line of the usage log names the end of a request."""

import asyncio
from contextlib import suppress

from gateway.errors import UnavailableError
from gateway.identity.callers import Caller
from gateway.identity.stores import Tenant
from gateway.policy import Terms
from gateway.quota.accounts import Account
from gateway.quota.usage_lines import Line, UsageRecord

CALLER = Caller(Tenant("acme", "", 1000.0, 1), Terms(), "key 1", 0.0)


class Lines(list[Line]):
    def write(self, line: Line) -> None:
        self.append(line)


async def line_of(error: BaseException, deadline_in_s: float) -> Line:
    lines = Lines()
    deadline = asyncio.get_running_loop().time() + deadline_in_s
    with suppress(type(error)), UsageRecord(lines, CALLER, "Generate", "r-1", deadline) as record:
        record.account = Account("tiny", admitted=True, prompt_tokens=5, day="20200229")
        raise error
    (line,) = lines
    return line


async def end_of(error: BaseException, deadline_in_s: float) -> object:
    return (await line_of(error, deadline_in_s))["end"]


async def test_a_line_bears_the_day_of_its_account_and_not_the_one_on_which_it_is_written() -> None:
    assert (await line_of(asyncio.CancelledError(), 60.0))["day"] == "20200229"


async def test_a_call_that_grpc_ends_at_its_deadline_has_run_into_it_and_was_not_cancelled() -> None:
    assert await end_of(asyncio.CancelledError(), 60.0) == "cancelled"
    assert await end_of(asyncio.CancelledError(), 0.0) == "deadline_exceeded"


async def test_an_error_is_named_by_its_reason_and_what_nobody_expected_internal() -> None:
    assert await end_of(UnavailableError("gone", reason="WORKER_LOST"), 60.0) == "worker_lost"
    assert await end_of(ZeroDivisionError(), 60.0) == "internal"
