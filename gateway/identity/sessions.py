"""The calls that run now, so that they can be ended when their tenant or credential is no longer good."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.identity.callers import Caller

Interrupt = Callable[[GatewayError], None]


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    caller: Caller
    interrupt: Interrupt


class Sessions:
    """Belongs to the event loop. Invariant: holds exactly the calls whose context is open."""

    def __init__(self) -> None:
        self._open: set[Session] = set()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, caller: Caller, interrupt: Interrupt) -> Iterator[None]:
        """Hold one call; `interrupt` ends it from outside."""
        session = Session(caller, interrupt)
        self._open.add(session)
        try:
            yield
        finally:
            self._open.discard(session)

    def open_now(self) -> Set[Session]:
        """Return those that run at this moment."""
        return frozenset(self._open)
