"""Terms that a test can change."""

from gateway.identity.callers import Caller
from gateway.policy import Terms


class TermsOfATest:
    """What a caller came with holds, until a test says otherwise."""

    def __init__(self) -> None:
        self.changed: Terms | None = None

    def of(self, caller: Caller) -> Terms:
        return self.changed or caller.terms
