"""Which tokens may come next under a constraint, one completion at a time. Knows llguidance; no models, no tensors."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

from worker.batch import Uint32Array
from worker.engine.constraints import ConstraintFailed

_MAX_REASON_CHARS = 120
_LIMIT = "lexer error: too many"


class CompiledConstraint:
    """A constraint over one model's tokens. Implements the engine's Constraint port.

    The template is never advanced: completions get copies of it.
    """

    def __init__(self, template: LLMatcher, vocab_size: int) -> None:
        self._template = template
        self._num_words = -(-vocab_size // 32)

    def begin(self, token_ids: Sequence[int] = ()) -> "MatcherState":
        """Return the state behind `token_ids`, the completion so far.

        Raises ConstraintFailed if they don't fit, or if nothing may follow them.
        """
        matcher = self._template.deep_copy()
        # What may follow is asked for behind the last one only: that takes ten times as long as to consume one.
        if not all(matcher.consume_token(token_id) for token_id in token_ids):
            raise ConstraintFailed(_rejection(matcher))
        state = MatcherState(matcher, self._num_words)
        if matcher.is_stopped():
            raise ConstraintFailed(f"nothing may follow: {matcher.stop_reason()}")
        return state


class MatcherState:
    """Implements the engine's ConstraintState port. `allowed` is of this moment; each `accept` makes another array."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._num_words = num_words
        self.allowed = self._allowed()

    def accept(self, token_id: int) -> bool:
        matcher = self._matcher
        if not matcher.consume_token(token_id):
            raise ConstraintFailed(_rejection(matcher))
        # Found out now, or when it was asked what may follow.
        if not matcher.is_stopped():
            self.allowed = self._allowed()
        if not matcher.is_stopped():
            return True
        if matcher.is_error() or not matcher.is_accepting():
            raise ConstraintFailed(f"no token can follow: {_reason(matcher)}")
        return False

    def _allowed(self) -> Uint32Array:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        if self._matcher.is_error():
            raise ConstraintFailed(f"no token can follow: {_reason(self._matcher)}")
        return words[: self._num_words]


def _rejection(matcher: LLMatcher) -> str:
    """Why a token was not taken. The compiler's words name a limit, or quote the token, which belongs into no log."""
    told = _reason(matcher)
    return (
        f"no token can follow: {told}" if told.startswith(_LIMIT) else f"a token does not fit: {matcher.stop_reason()}"
    )


def _reason(matcher: LLMatcher) -> str:
    """What ended it, in one line: the compiler is told to leave texts and grammars out of its words."""
    told = matcher.get_error().splitlines()
    return told[0].strip()[:_MAX_REASON_CHARS] if told else str(matcher.stop_reason())
