"""What one request has used, as a line of the usage log: exact, and written for whatever end the request comes to.

The lines of Generate calls of a day add up to what `GetUsage` says of it. No prompt, no text and no token ids.
"""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Protocol, Self

from gateway.errors import GatewayError
from gateway.identity.callers import Caller
from gateway.quota.accounts import Account

FINISHED: Final = "finished"
CANCELLED: Final = "cancelled"
DEADLINE: Final = "deadline_exceeded"

_EARLY_S: Final = 0.05

Line = Mapping[str, str | int | float]


class UsageSink(Protocol):
    def write(self, line: Line) -> None:
        """Take a line. Returns at once, whatever becomes of it."""
        ...


class NoUsageLog:
    """Nobody wants lines."""

    def write(self, line: Line) -> None:
        pass


class UsageRecord:
    """A context around one call, from its arrival to its end; `account` is set once there is one.

    A call that has used nothing leaves no line.
    """

    def __init__(
        self, sink: UsageSink, caller: Caller, call: str, request_id: str, deadline: float | None = None
    ) -> None:
        """`deadline` is on the event loop's clock: a call that is cancelled behind it has run into it."""
        self.account: Account | None = None
        self._sink = sink
        self._caller = caller
        self._call = call
        self._request_id = request_id
        self._deadline = deadline

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        account = self.account
        if account is not None and (account.admitted or account.counted_tokens):
            self._sink.write(self._line(account, self._end(error)))

    def _end(self, error: BaseException | None) -> str:
        if error is None:
            return FINISHED
        if isinstance(error, GatewayError):
            return error.reason.lower()
        if isinstance(error, asyncio.CancelledError):
            # gRPC has a clock of its own, and ends a call that has run into its deadline like one that is cancelled.
            late = self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline - _EARLY_S
            return DEADLINE if late else CANCELLED
        return "internal"

    def _line(self, account: Account, end: str) -> Line:
        return {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "day": account.day,
            "request_id": self._request_id,
            "tenant": self._caller.tenant_id,
            "call": self._call,
            "model": account.model,
            "adapter": account.adapter,
            "prompt_tokens": account.prompt_tokens,
            "cached_device_tokens": account.cached_device_tokens,
            "cached_host_tokens": account.cached_host_tokens,
            "cached_storage_tokens": account.cached_storage_tokens,
            "computed_prompt_tokens": account.prompt_tokens - account.cached_tokens,
            "public_prefix_tokens": account.public_prefix_tokens,
            "cached_public_tokens": account.cached_public_tokens,
            "completion_tokens": account.completion_tokens,
            "counted_tokens": account.counted_tokens,
            "seconds": round(time.monotonic() - self._caller.arrived_at, 4),
            "end": end,
        }
