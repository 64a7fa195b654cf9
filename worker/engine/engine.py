"""The engine: requests in, one step at a time, outputs out.

Each step is decide, do, commit: the scheduler decides on values, the executor makes the forward pass, and what it
sampled is taken in. Driven by one owner, which passes the time in; `EngineThread` is such an owner.
"""

from collections.abc import Callable

from hicache.cache import PrefixCache
from worker.batch import Executor, SampledToken, TextStreamFactory
from worker.config import EngineConfig
from worker.engine import waiting
from worker.engine.deadlines import Deadlines
from worker.engine.faults import report
from worker.engine.limits import ModelLimits, refusal
from worker.engine.observer import EngineObserver, NullObserver
from worker.engine.outbox import Outbox
from worker.engine.ports import FinishReason, Load, Request, SequenceId, SequenceOutput
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence
from worker.engine.step import Step, batch_of
from worker.errors import Failure, FailureCode

_PREFILL_TOKENS = 64
"""Tokens of a step from which on its duration says how fast prompts are computed."""


class DuplicateSequenceError(ValueError):
    """A sequence of this id is alive already."""


class Engine:
    """Continuous batching over a prefix cache.

    `clock`, where given, must agree with the `now` passed in; it is read once after each forward pass, so that
    latencies include the pass that made the token. Without it a step takes no time.

    Invariant: every submitted sequence gets exactly one output with `finish`; by then its slots and leases are free.
    """

    def __init__(
        self,
        cache: PrefixCache,
        executor: Executor,
        text: TextStreamFactory,
        limits: ModelLimits,
        config: EngineConfig,
        *,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cache = cache
        self._executor = executor
        self._text = text
        self._limits = limits
        self._config = config
        self._observer = observer or NullObserver()
        self._clock = clock
        self._scheduler = Scheduler(cache, waiting.by_name(config.order), config)
        self._deadlines = Deadlines()
        self._outbox = Outbox()
        self._sequences: dict[SequenceId, Sequence] = {}  # those alive
        self._num_submitted = 0
        self._evicted_tokens = cache.stats().evicted_tokens
        self._closed = False
        self.last_step_tokens = 0  # 0: nothing could be computed

    @property
    def pending(self) -> int:
        """What `idle` still has to see the end of, below the engine: copies, pages on their way."""
        return self._cache.pending

    def idle(self, now: float) -> None:
        """Let the cache go on with what is under way, when there is no step to be made."""
        self._cache.tick(now)
        self._observe_state()

    def flush(self, now: float) -> None:
        """Begin to bring what the cache has to where it outlives this process; `idle` follows while it is `pending`."""
        self._cache.flush(now=now)

    @property
    def has_work(self) -> bool:
        """Whether the next step has something to do or to say."""
        return bool(self._sequences) or len(self._outbox) > 0

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a sequence, on the engine's clock."""
        return self._deadlines.earliest()

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that one sequence can ever hold in the pool."""
        return self._cache.max_lease_slots

    def submit(self, request: Request, now: float) -> None:
        """Take in a request. One that can't be served is answered by the next step with a Failure.

        Raises DuplicateSequenceError, and changes nothing, for an id that is alive or whose end is still to be told.
        """
        if request.sequence_id in self._sequences or request.sequence_id in self._outbox:
            raise DuplicateSequenceError(f"sequence {request.sequence_id} is alive already")
        failure = self._refusal(request)
        if failure is not None:
            self._outbox.finished(request.sequence_id, failure)
            self._observer.finished(request.tenant, request.adapter, failure.code.value, 0, 0.0)
            return
        ends = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            ends = ends.union(self._limits.eos_token_ids)
        sequence = Sequence(request, self._num_submitted, now, ends)
        self._num_submitted += 1
        self._scheduler.enqueue(sequence, now)  # if that raises, the sequence was never here
        self._sequences[request.sequence_id] = sequence
        self._deadlines.watch(sequence)

    def cancel(self, sequence_id: SequenceId, now: float) -> None:
        """End a sequence and free its slots at once; nothing happens if it isn't alive (any more)."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._end(sequence, Failure(FailureCode.CANCELLED, "the request was cancelled"), now)

    def close(self) -> None:
        """From now on refuse what is submitted; what is here goes on."""
        self._closed = True

    def abort(self, failure: Failure, now: float) -> None:
        """End every sequence with `failure`, even if what went wrong before goes wrong again."""
        for sequence in list(self._sequences.values()):
            try:
                self._end(sequence, failure, now)
            except Exception as error:  # noqa: BLE001 - every one of them is owed its end
                report("sequence ended badly", error, request_id=sequence.request.request_id)

    def step(self, now: float) -> list[SequenceOutput]:
        """Make one step and return the news of all sequences that have some."""
        for sequence in self._deadlines.expired(now):
            self._end(sequence, Failure(FailureCode.DEADLINE_EXCEEDED, "the deadline has passed"), now)
        self._cache.tick(now)
        step = self._scheduler.schedule(now)
        self._report(step, now)
        self.last_step_tokens = step.num_tokens
        if step.chunks:
            self._execute(step, now)
        self._observe_state()
        if self._config.check and self._scheduler.num_running == 0:
            self.check()
        return self.take_outputs()

    def take_outputs(self) -> list[SequenceOutput]:
        """Return the news that no step has returned yet (after a cancel or an abort), without making a step."""
        return self._outbox.take()

    def load(self) -> Load:
        return Load(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_slots=self._cache.num_free_slots,
            evictable_slots=self._cache.num_evictable_slots,
            num_slots=self._cache.num_slots,
        )

    def check(self) -> None:
        """Verify every invariant of engine and cache; raises AssertionError."""
        self._scheduler.check()
        alive = self._scheduler.num_running + self._scheduler.num_waiting
        assert alive == len(self._sequences), "the scheduler and the engine disagree on who is alive"
        assert not any(sequence.ended for sequence in self._sequences.values()), "an ended sequence is alive"
        self._cache.check()

    def _refusal(self, request: Request) -> Failure | None:
        if self._closed:
            return Failure(FailureCode.SHUTTING_DOWN, "the worker is shutting down")
        failure = refusal(request, self._limits, self.max_sequence_tokens)
        if failure is None and len(self._sequences) >= self._config.max_running + self._config.max_waiting:
            return Failure(
                FailureCode.OVERLOADED,
                f"{len(self._sequences)} requests run or wait here, the limits are {self._config.max_running} running "
                f"and {self._config.max_waiting} waiting",
            )
        return failure

    def _report(self, step: Step, now: float) -> None:
        for sequence in step.admitted:
            request, admission = sequence.request, sequence.admission
            assert admission is not None
            self._outbox.admitted(request.sequence_id, admission)
            self._observer.admitted(request.tenant, request.adapter, admission, now - sequence.arrived_at)
        for sequence in step.paused:
            self._observer.paused(sequence.request.tenant, sequence.request.adapter)

    def _execute(self, step: Step, now: float) -> None:
        try:
            sampled = self._executor.run(batch_of(step.chunks))
            if len(sampled) != len(step.sampling):
                raise RuntimeError(f"the executor sampled {len(sampled)} tokens, {len(step.sampling)} were asked for")
        except Exception as error:  # noqa: BLE001 - whatever a forward pass does, the other sequences go on
            report("forward pass failed", error, sequences=len(step.chunks), tokens=step.num_tokens)
            sampled = None
        end = now if self._clock is None else self._clock()
        self._observer.stepped(step.num_tokens, len(step.chunks), end - now)
        if step.num_tokens >= _PREFILL_TOKENS and sampled is not None:
            self._cache.observe_prefill(step.num_tokens, end - now, now=end)
        if sampled is None:
            for chunk in step.chunks:
                self._end(chunk.sequence, Failure(FailureCode.INTERNAL, "the forward pass failed"), end)
            return
        sampling = step.sampling
        self._scheduler.commit(step, end)
        for sequence, token in zip(sampling, sampled, strict=True):
            if 0 <= token.token_id < self._limits.vocab_size:
                self._take(sequence, token, end)
            else:
                # Computed in the next step it would end that step for all its neighbours.
                outside = IndexError(f"token id {token.token_id} is outside of the vocabulary")
                report("sampling failed", outside, request_id=sequence.request.request_id)
                self._end(sequence, Failure(FailureCode.INTERNAL, "no token could be sampled"), end)

    def _take(self, sequence: Sequence, token: SampledToken, now: float) -> None:
        """Take in one sampled token: hand it out with its text, and end the sequence if it was the last."""
        request = sequence.request
        if sequence.outputs:
            self._observer.next_token(request.tenant, request.adapter, now - sequence.last_token_at)
        else:
            self._observer.first_token(request.tenant, request.adapter, now - sequence.arrived_at)
        sequence.append(token.token_id, now)
        self._outbox.sampled(request.sequence_id, token)
        try:
            text, finish = self._text_and_finish(sequence, token.token_id)
        except Exception as error:  # noqa: BLE001 - text that fails is one sequence's trouble
            report("detokenisation failed", error, request_id=request.request_id)
            text, finish = "", Failure(FailureCode.INTERNAL, "the tokens could not be turned into text")
        self._outbox.text(request.sequence_id, text)
        if finish is not None:
            self._end(sequence, finish, now)

    def _text_and_finish(self, sequence: Sequence, token_id: int) -> tuple[str, FinishReason | Failure | None]:
        params = sequence.request.params
        if sequence.text is None:
            sequence.text = self._text.open(sequence.request.key.token_ids, params.stop)
        if token_id in sequence.end_token_ids:
            return sequence.text.flush(), FinishReason.STOP
        delta = sequence.text.push((token_id,))
        if delta.stopped:
            return delta.text, FinishReason.STOP
        if len(sequence.outputs) == params.max_new_tokens:
            return delta.text + sequence.text.flush(), FinishReason.LENGTH
        return delta.text, None

    def _end(self, sequence: Sequence, finish: FinishReason | Failure, now: float) -> None:
        request = sequence.request
        sequence.ended = True
        del self._sequences[request.sequence_id]
        self._deadlines.ended(sequence)
        self._outbox.finished(request.sequence_id, finish)
        self._scheduler.remove(sequence, now)
        outcome = finish.value if isinstance(finish, FinishReason) else finish.code.value
        self._observer.finished(
            request.tenant, request.adapter, outcome, len(sequence.outputs), now - sequence.arrived_at
        )

    def _observe_state(self) -> None:
        evicted_tokens = self._cache.stats().evicted_tokens
        if evicted_tokens > self._evicted_tokens:
            self._observer.evicted(evicted_tokens - self._evicted_tokens)
            self._evicted_tokens = evicted_tokens
        self._observer.load_changed(self.load())
        tiers = self._cache.tier_stats()
        if tiers is not None:
            self._observer.tiers_changed(tiers)
