"""What a request wants, and what it turns out to use: the values between the pipeline and the quotas."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gateway.identity.callers import Caller


@dataclass(frozen=True, slots=True)
class Demand:
    """What a call needs before it may go on. Every call is one request, and one of those that run at a time."""

    route: str  # "Generate", "CountTokens", "ListModels": for metrics and messages
    tokens: int = 0  # the most that it can use: prompt and completions
    counted_tokens: int = 0  # of a prompt that is only counted


@dataclass(slots=True)
class Account:
    """What one request has really used so far. Written by the pipeline, read when its permit ends."""

    model: str = ""
    adapter: str = ""
    admitted: bool = False  # by a worker; before that nothing counts
    prompt_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    public_prefix_tokens: int = 0
    cached_public_tokens: int = 0
    completion_tokens: int = 0
    counted_tokens: int = 0  # of a prompt that was only counted
    day: str = ""  # YYYYMMDD of UTC, on which all of this counts; said by the quotas

    @property
    def cached_tokens(self) -> int:
        return self.cached_device_tokens + self.cached_host_tokens + self.cached_storage_tokens


class Quotas(Protocol):
    def admit(self, caller: Caller, demand: Demand, account: Account) -> AbstractAsyncContextManager[None]:
        """Reserve what a call needs for as long as the context lasts, and settle then by what `account` says.

        Entering may wait, where the tenant's queue has room. Raises QuotaExceededError. Whatever way the context is
        left, what it reserved is settled exactly once.
        """
        ...

    def precheck(self, caller: Caller) -> None:
        """Raise QuotaExceededError for a call that is known to be over a limit, before any work is spent on it."""
        ...
