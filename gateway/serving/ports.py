"""What the pipeline asks others for, beyond workers, adapters and quotas."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.generation import Generation
from gateway.identity.callers import Caller
from gateway.identity.sessions import Interrupt


@dataclass(frozen=True, slots=True)
class PublicPrefix:
    """The beginning of prompts whose KV all tenants share."""

    prefix_id: str
    version: int  # another one each time that something is registered under the id
    num_tokens: int


class PublicPrefixes(Protocol):
    """The public prefixes of the deployment."""

    def longest(self, model: str, adapter: str, token_ids: Sequence[int]) -> PublicPrefix | None:
        """Return the longest one for this model and adapter that the prompt begins with and goes beyond."""
        ...


class Namespaces(Protocol):
    """Remembers which cache namespaces a tenant has, so that they can be purged."""

    def used(self, generation: Generation) -> None:
        """A request is about to be sent to a worker. Returns at once, and fails nobody."""
        ...


class OpenSessions(Protocol):
    """The calls that run now."""

    def opened(self, caller: Caller, interrupt: Interrupt) -> AbstractContextManager[None]: ...
