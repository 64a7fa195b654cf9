"""An engine over a real cache and an executor that knows what belongs into each slot, driven by hand."""

from collections.abc import Callable, Sequence

import numpy as np

from hicache.cache import PrefixCache
from hicache.keys import Namespace, PrefixKey
from hicache.stats import CopyDurations, TierStats
from worker.batch import (
    AsyncExecutor,
    Batch,
    Executor,
    Int32Array,
    PendingStep,
    SampledToken,
    SamplingParams,
    TextStreamFactory,
    TokenLogprobs,
)
from worker.config import EngineConfig
from worker.engine import (
    Admission,
    Engine,
    EngineObserver,
    FinishReason,
    Load,
    ModelLimits,
    Request,
    SequenceId,
    SequenceOutput,
)
from worker.engine.executors import InlineExecutor
from worker.engine.fake import FakeAdapters, FakeExecutor, NumberText
from worker.errors import Failure

VOCAB = 1000
EOS = 999
TENANT_A = Namespace(b"a" * 16)
TENANT_B = Namespace(b"b" * 16)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def make_request(
    number: int,
    tokens: Sequence[int] = (1, 2, 3),
    *,
    max_new_tokens: int = 4,
    namespace: Namespace = TENANT_A,
    deadline: float | None = None,
    priority: int = 0,
    tenant: str = "a",
    params: SamplingParams | None = None,
) -> Request:
    return Request(
        sequence_id=(0, number),
        request_id=f"r{number}",
        key=PrefixKey.of(namespace, np.array(tokens, dtype=np.int32)),
        params=params or SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True),
        tenant=tenant,
        deadline=deadline,
        priority=priority,
    )


class ScriptedExecutor:
    """A fake executor that remembers its batches and does what a test tells it.

    `break_in` names runs (from 1) that raise after having written to the slots; `before_run` is called first in every
    run; `drop` results are left out; a prompt that begins with a token of `spoil` gets that token id sampled.
    """

    def __init__(self, num_slots: int, adapters: FakeAdapters | None = None) -> None:
        self.inner = FakeExecutor(num_slots, VOCAB, adapters)
        self.break_in: set[int] = set()
        self.before_run: Callable[[], object] = lambda: None
        self.drop = 0
        self.spoil: dict[int, int] = {}
        self.num_runs = 0
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> list[SampledToken]:
        self.num_runs += 1
        self.batches.append(batch)
        self.before_run()
        result = self.inner.run(batch)
        if self.num_runs in self.break_in:
            raise RuntimeError("broken on purpose")
        return [
            SampledToken(self.spoil.get(int(row.prompt_token_ids[0]), token.token_id), token.logprobs)
            for row, token in zip(batch.samples, result, strict=True)
        ][self.drop :]


class WatchedExecutor:
    """Starts passes as another one does, and remembers the slots of the last."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._slots: Int32Array = np.empty(0, np.int32)

    def start(self, batch: Batch) -> PendingStep:
        self._slots = batch.kv_indices
        return self._executor.start(batch)

    def take_slots(self) -> Int32Array:
        """Return the slots of the pass that was started since the last call, if one was."""
        slots, self._slots = self._slots, self._slots[:0]
        return slots


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.admissions: list[Admission] = []
        self.queue_waits: list[float] = []
        self.continuations: list[Admission] = []
        self.ttfts: list[float] = []
        self.gaps: list[float] = []
        self.outcomes: list[str] = []
        self.e2es: list[float] = []
        self.num_pauses = 0
        self.num_evicted = 0
        self.steps: list[tuple[int, int, float]] = []
        self.loads: list[Load] = []
        self.tiers: list[TierStats] = []
        self.durations: list[CopyDurations] = []
        self.namespaces = self.cut_floor_tokens = 0

    def admitted(self, tenant: str, adapter: str, admission: Admission, queue_wait_s: float) -> None:
        self.admissions.append(admission)
        self.queue_waits.append(queue_wait_s)

    def continued(self, tenant: str, adapter: str, admission: Admission) -> None:
        self.continuations.append(admission)

    def first_token(self, tenant: str, adapter: str, ttft_s: float) -> None:
        self.ttfts.append(ttft_s)

    def next_token(self, tenant: str, adapter: str, gap_s: float) -> None:
        self.gaps.append(gap_s)

    def paused(self, tenant: str, adapter: str) -> None:
        self.num_pauses += 1

    def finished(self, tenant: str, adapter: str, outcome: str, output_tokens: int, e2e_s: float) -> None:
        self.outcomes.append(outcome)
        self.e2es.append(e2e_s)

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None:
        self.steps.append((num_tokens, num_sequences, duration_s))

    def evicted(self, num_tokens: int) -> None:
        self.num_evicted += num_tokens

    def load_changed(self, load: Load) -> None:
        self.loads.append(load)

    def tiers_changed(self, stats: TierStats) -> None:
        self.tiers.append(stats)

    def copies_ended(self, durations: CopyDurations) -> None:
        self.durations.append(durations)

    def cache_changed(self, num_namespaces: int, cut_floor_tokens: int) -> None:
        self.namespaces, self.cut_floor_tokens = num_namespaces, cut_floor_tokens


class Rig:
    """An engine with everything around it, and all that came out so far, by sequence.

    While `beside` is set, steps are overlapped as `EngineThread` does it: the news of the step before come out beside
    the forward pass, then `beside` is called, and the pass runs last, on what it finds by then.
    """

    def __init__(
        self,
        num_slots: int = 10_000,
        page_size: int = 1,
        *,
        config: EngineConfig | None = None,
        context_length: int = 100_000,
        text: TextStreamFactory | None = None,
        eos_token_ids: tuple[int, ...] = (EOS,),
        clock: Callable[[], float] | None = None,
        observer: EngineObserver | None = None,
        cache: Callable[[FakeExecutor], PrefixCache] | None = None,
        running: Callable[[Executor], AsyncExecutor] = InlineExecutor,
        adapters: FakeAdapters | None = None,
    ) -> None:
        """`cache` makes another one than the plain one, with what the executor computes in its slots."""
        self.now = 0.0
        self.beside: Callable[[], object] | None = None
        self.executor = ScriptedExecutor(num_slots, adapters)
        self.cache = PrefixCache(num_slots, page_size=page_size) if cache is None else cache(self.executor.inner)
        self.observer = Recorder()
        self._started = WatchedExecutor(running(self.executor))
        self.engine = Engine(
            self.cache,
            self._started,
            text or NumberText(),
            ModelLimits(VOCAB, context_length, eos_token_ids),
            config or EngineConfig(),
            adapters=adapters,
            observer=observer or self.observer,
            clock=clock or (lambda: self.now),
        )
        self.outputs: dict[SequenceId, list[SequenceOutput]] = {}
        self.token_times: dict[SequenceId, list[float]] = {}  # when each token came

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request, self.now)

    def step(self, check: bool = True) -> list[SequenceOutput]:
        self.now += 1.0
        outputs = self.engine.step(self.now) if self.beside is None else self._overlapped_step(self.beside, check)
        for output in outputs:
            self.outputs.setdefault(output.sequence_id, []).append(output)
            self.token_times.setdefault(output.sequence_id, []).extend([self.now] * len(output.token_ids))
        if check:
            self.engine.check()
        return outputs

    def _overlapped_step(self, beside: Callable[[], object], check: bool) -> list[SequenceOutput]:
        self._started.take_slots()
        self.engine.begin(self.now)
        self.engine.observe_state()
        outputs = self.engine.take_outputs()
        beside()
        if check:
            self.engine.check()
        free = np.zeros(self.cache.num_slots, dtype=np.bool_)
        free[self.cache._slots.free_slots()] = True
        assert not free[self._started.take_slots()].any(), "slots are freed under a forward pass"
        self.engine.complete()
        return outputs

    def run(self, max_steps: int = 10_000, check: bool = True) -> int:
        """Step until nothing is left; return the number of steps."""
        for num_steps in range(max_steps):
            if not self.engine.has_work:
                return num_steps
            self.step(check)
        raise AssertionError(f"still at work after {max_steps} steps: {self.engine.load()}")

    def tokens(self, number: int, index: int = 0) -> list[int]:
        return [token for output in self._of(number, index) for token in output.token_ids]

    def scores(self, number: int) -> list[TokenLogprobs]:
        return [entry for output in self._of(number) for entry in output.prompt_logprobs]

    def is_undisturbed(self, number: int) -> bool:
        """Whether a sequence got a token in every step from its first one on."""
        times = self.token_times[0, number]
        return times == [times[0] + index for index in range(len(times))]

    def text(self, number: int, index: int = 0) -> str:
        return "".join(output.text for output in self._of(number, index))

    def finish(self, number: int, index: int = 0) -> FinishReason | Failure | None:
        ends = [output.finish for output in self._of(number, index) if output.finish is not None]
        assert len(ends) <= 1, "a sequence ended twice"
        if ends:
            assert self._of(number, index)[-1].finish is not None, "an output came after the end"
        return ends[0] if ends else None

    def failure(self, number: int, index: int = 0) -> Failure:
        finish = self.finish(number, index)
        assert isinstance(finish, Failure), finish
        return finish

    def admission(self, number: int, index: int = 0) -> Admission:
        admissions = [output.admission for output in self._of(number, index) if output.admission is not None]
        assert len(admissions) == 1, f"admitted {len(admissions)} times"
        return admissions[0]

    def assert_nothing_is_held(self) -> None:
        """Every slot is free or can be evicted, and every invariant holds."""
        load = self.engine.load()
        assert (load.running, load.waiting) == (0, 0)
        assert load.free_slots + load.evictable_slots == load.num_slots
        self.engine.check()

    def _of(self, number: int, index: int = 0) -> list[SequenceOutput]:
        return [output for output in self.outputs.get((0, number), []) if output.index == index]


def answer(tokens: Sequence[int], max_new_tokens: int) -> list[int]:
    """Return what a request of `tokens` yields alone, in one piece, on an empty cache."""
    rig = Rig(
        num_slots=len(tokens) + max_new_tokens,
        config=EngineConfig(max_step_tokens=100_000, max_chunk_tokens=100_000),
    )
    rig.submit(make_request(0, tokens, max_new_tokens=max_new_tokens))
    rig.run(check=False)
    return rig.tokens(0)
