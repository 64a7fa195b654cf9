"""One completion on its way through the engine: what is known of it, how much of that is computed, where it lies.

The engine's own state, touched by its thread only. Makes no decision.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np

from hicache.cache import Hit, Lease, Prefetch
from hicache.keys import PrefixKey
from worker.batch import Int32Array, LayerGate, SampleRow, SamplingParams, TextStream
from worker.engine.branches import branch_params
from worker.engine.constraints import leaves_more
from worker.engine.ports import Admission, FinishReason, Request
from worker.engine.timeline import Course, Timeline
from worker.errors import Failure


class Sequence:
    """A completion of a request with its progress. Where it is one of several, the first leads until all have begun.

    One that was begun elsewhere has its first tokens from there: they are known as if it had paused here.

        tokens   [0 ........ num_computed) [........ num_known) [........ capacity)
                  KV in lease.slots         to be computed        not sampled yet

    Invariant: num_computed < num_known while it lives; it runs exactly while it holds a lease, and then
    num_computed <= lease.num_tokens. Without a lease nothing is computed.
    """

    def __init__(
        self,
        request: Request,
        order: int,
        arrived_at: float,
        end_token_ids: frozenset[int],
        index: int = 0,
        inherited: SequenceOf[int] = (),
    ) -> None:
        """`inherited` are the tokens of one that goes on. Raises ConstraintFailed where they don't fit."""
        prompt = request.key.token_ids
        self.request = request
        self.index = index  # among the request's completions
        self.params = branch_params(request.params, index)
        self.order = order  # of arrival: 0, 1, 2, …
        self.arrived_at = arrived_at
        self.end_token_ids = end_token_ids
        self.num_prompt = len(prompt)
        self.num_inherited = len(inherited)
        self.num_known = self.num_given
        self.num_computed = 0
        # Tokens of the prompt before this one need no log probability, or have it. The first has none.
        self.scored_until = 1 if request.params.prompt_logprobs is not None and not inherited else self.num_prompt
        self.constraint = request.constraint.begin(inherited) if request.constraint is not None else None
        self.outputs = list(inherited)
        self.lease: Lease | None = None
        self.awaits_load = False  # nothing of it can be computed yet
        self.follows_load = False  # computes behind a load that may fail yet
        self.prefetch: Prefetch | None = None  # what storage brings while it waits, or has brought until it is admitted
        self.text: TextStream | None = None
        self.admission: Admission | None = None
        self.num_pauses = 0
        self.num_starts = 0  # leases it has run on
        self.adapter_place: int | None = None  # of the adapter that it runs with
        self.last_token_at = arrived_at
        self.course = Course(arrived_at)
        self.ended = False
        self.is_last = False  # of its request, now that it has ended
        self.fault: FinishReason | Failure | None = None  # what ends it, found out while its text was made
        self._prompt = prompt
        self._banned = tuple(sorted(end_token_ids)) if request.params.min_new_tokens else ()
        self._tokens: Int32Array = np.empty(self.num_prompt + request.params.max_new_tokens, dtype=np.int32)
        self._tokens[: self.num_prompt] = prompt
        self._tokens[self.num_prompt : self.num_given] = inherited
        # What was known when it last started, with namespaces.
        self.key = self.known_key(self.num_given) if inherited else request.key

    @property
    def precedence(self) -> tuple[int, int]:
        """Sorts what is served first and paused last to the front: high priority, then early arrival."""
        return (-self.request.priority, self.order)

    @property
    def num_given(self) -> int:
        """Tokens that it came with: its prompt, and what it inherited."""
        return self.num_prompt + self.num_inherited

    @property
    def num_sampled(self) -> int:
        """Tokens that were sampled here."""
        return len(self.outputs) - self.num_inherited

    @property
    def scores(self) -> bool:
        """Whether log probabilities of its prompt are still to be found."""
        return self.scored_until < self.num_prompt

    @property
    def max_cached_tokens(self) -> int:
        """How many leading tokens of its key it can do without computing: never the last one, nor what is scored."""
        return min(self.scored_until, len(self.key)) - 1 if self.scores else len(self.key) - 1

    @property
    def num_next(self) -> int:
        """How many tokens are sampled behind what is known: one, or the first ones of all completions at once."""
        return 1 if self.outputs else self.params.n

    @property
    def num_missing(self) -> int:
        """Tokens known and not computed."""
        return self.num_known - self.num_computed

    @property
    def capacity(self) -> int:
        """The most tokens it can ever have."""
        return len(self._tokens)

    @property
    def prefilling(self) -> bool:
        """Whether part of what it started with is still to be computed."""
        return self.num_computed < len(self.key)

    @property
    def has_begun(self) -> bool:
        """Whether anything was computed or told of it, or may be just now."""
        return self.lease is not None or self.admission is not None or self.goes_on

    @property
    def was_paused(self) -> bool:
        return self.num_pauses > 0

    @property
    def goes_on(self) -> bool:
        """Whether it had begun, here or elsewhere, when it last came to wait."""
        return self.was_paused or self.num_inherited > 0

    def tokens(self, start: int, end: int) -> Int32Array:
        """Return the known tokens [start, end): a view, int32."""
        return self._tokens[start:end]

    def known_key(self, num_tokens: int) -> PrefixKey:
        """Return the key of the first `num_tokens` known tokens."""
        num_outputs = num_tokens - self.num_prompt
        if num_outputs <= 0:
            return self.request.key.prefix(num_tokens)
        return self.request.key.extend(self.tokens(self.num_prompt, num_tokens))

    def start(self, lease: Lease) -> None:
        """Begin to run on `lease`, whose matched tokens count as computed; once more when a load back has ended."""
        self.num_starts += lease is not self.lease
        self.lease = lease
        self.awaits_load = lease.loading
        self.follows_load = False
        self.num_computed = lease.num_tokens

    def follow_load(self) -> None:
        """Begin to compute behind the load that is under way, as if it had ended well."""
        assert self.lease is not None
        self.lease.follow()
        self.awaits_load, self.follows_load = False, True
        self.num_computed = self.lease.num_tokens

    @property
    def gate(self) -> LayerGate | None:
        """Where its forward pass waits for the load that it follows."""
        return self.lease.gate if self.follows_load and self.lease is not None else None

    def stop_prefetch(self) -> None:
        """It is admitted, or ends: what storage brought is counted, and nobody waits for it any more."""
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.cancel()

    def stop(self) -> Lease | None:
        """Cease to run; return the lease it ran on, which is now the caller's."""
        lease, self.lease, self.num_computed, self.follows_load = self.lease, None, 0, False
        return lease

    def append(self, token_id: int, now: float) -> None:
        """Take a sampled token: known from now on."""
        if not self.num_sampled:
            self.course.first_token(now)
        self._tokens[self.num_known] = token_id
        self.num_known += 1
        self.outputs.append(token_id)
        self.last_token_at = now

    def branch(self, index: int, token_id: int, now: float) -> "Sequence":
        """Return another completion of the same prompt, which this one has computed. It begins with `token_id`."""
        branch = Sequence(self.request, self.order + index, self.arrived_at, self.end_token_ids, index)
        branch.scored_until = branch.num_prompt
        # The leader has told of the prompt; a branch finds all of it.
        branch.admission = Admission(branch.num_prompt, Hit(branch.num_prompt))
        branch.course = Course(now)
        branch.course.born(now)
        branch.append(token_id, now)
        branch.key = branch.known_key(branch.num_known)
        return branch

    def timeline(self) -> Timeline:
        """Return when it did what."""
        return self.course.timeline(self.num_pauses, self.num_sampled, is_last=self.is_last)

    def num_scores(self, start: int, end: int) -> int:
        """How many tokens of the prompt get their log probabilities when [start, end) is computed."""
        return len(self._scored_by(start, end)) if self.scores else 0

    def sample_rows(self, start: int, end: int, row: int) -> list[SampleRow]:
        """Return what is asked of its tokens [start, end), of which the first is the batch's row `row`.

        First the tokens of the prompt that are to be scored, then what is sampled.
        """
        last = row + end - start - 1
        if self.outputs:
            return [self._next_row(last, self.params)] if end == self.num_known else []
        rows = []
        if self.scores:
            rows = [self._score_row(row + position - start, position + 1) for position in self._scored_by(start, end)]
        if end == self.num_known:
            rows += [self._next_row(last, branch_params(self.params, index)) for index in range(self.num_next)]
        return rows

    def _scored_by(self, start: int, end: int) -> range:
        """The positions in [start, end) whose logits score the token behind them."""
        return range(max(start, self.scored_until - 1), min(end, self.num_prompt - 1))

    def _score_row(self, row: int, position: int) -> SampleRow:
        given = int(self._prompt[position])
        return SampleRow(row, self.params, position, self._prompt[:position], (), given_token_id=given)

    def _next_row(self, row: int, params: SamplingParams) -> SampleRow:
        allowed = self.constraint.allowed if self.constraint is not None else None
        banned = self._banned if len(self.outputs) < params.min_new_tokens else ()
        if banned and allowed is not None and not leaves_more(allowed, banned):
            banned = ()  # a constraint that leaves nothing else is stronger
        return SampleRow(row, params, self.num_known, self._prompt, self.outputs, banned, allowed)
