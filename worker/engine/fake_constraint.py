"""A constraint without a grammar, for tests of everything around it: what may follow depends on the place alone."""

from collections.abc import Sequence

from worker.batch import Uint32Array
from worker.engine.constraints import ConstraintFailed, allows, pack


class FakeConstraint:
    """Implements Constraint: token k of a completion is k modulo 7, and `length` of them are all.

    It fails at token `breaks_at`, where that is given. End tokens are allowed from the third token on.
    """

    def __init__(
        self, vocab_size: int, length: int, end_token_ids: Sequence[int] = (), breaks_at: int | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.length = length
        self.end_token_ids = tuple(end_token_ids)
        self.breaks_at = breaks_at

    def begin(self, token_ids: Sequence[int] = ()) -> "_FakeState":
        state = _FakeState(self)
        for token_id in token_ids:
            if not state.accept(token_id):
                raise ConstraintFailed("nothing may follow")
        return state

    def allowed(self, num_tokens: int) -> Uint32Array:
        """What may follow `num_tokens` tokens."""
        fitting = set(range(num_tokens % 7, self.vocab_size, 7)) - set(self.end_token_ids)
        return pack(sorted(fitting | set(self.end_token_ids if num_tokens >= 3 else ())), self.vocab_size)


class _FakeState:
    def __init__(self, constraint: FakeConstraint) -> None:
        self._constraint = constraint
        self._num_tokens = 0
        self.allowed = constraint.allowed(0)

    def accept(self, token_id: int) -> bool:
        if self._num_tokens == self._constraint.breaks_at or not allows(self.allowed, token_id):
            raise ConstraintFailed("broken on purpose, or given what it does not allow")
        self._num_tokens += 1
        self.allowed = self._constraint.allowed(self._num_tokens)
        return self._num_tokens < self._constraint.length
