"""An engine on the real model whose cache has all its tiers, with real copies and a real store, driven in real time."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from hicache.stats import TierStats
from tests.driver import Answer, request
from tests.exactness import Recorder
from worker.batch import SamplingParams
from worker.config import CacheConfig, EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.engine.ports import Request, SequenceId
from worker.model.loading import LoadedModel
from worker.tiers import build_tiers

_DEADLINE_S = 300.0
_AVAILABLE_BYTES = 4 << 30


class TieredBench:
    """One life of a worker's engine and cache; leaving the `with` block ends copies and storage."""

    def __init__(self, model: LoadedModel, cache: CacheConfig, **engine: int) -> None:
        info = model.info
        self._ended = threading.Event()
        pool = model.pool(model.num_slots(cache))
        self.tiers = build_tiers(
            cache, pool, revision=info.revision, available_bytes=_AVAILABLE_BYTES, on_done=self._ended.set
        )
        self.cache = self.tiers.cache
        self.observer = Recorder()
        self.engine = Engine(
            self.cache,
            InlineExecutor(model.executor(pool)),
            model.text,
            ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
            EngineConfig(check=True, **engine),  # type: ignore[arg-type]
            observer=self.observer,
            clock=time.monotonic,
        )
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.tiers.close()

    @property
    def stats(self) -> TierStats:
        stats = self.cache.tier_stats()
        assert stats is not None
        return stats

    def answers(
        self, prompt_token_ids: Sequence[Sequence[int]], *, num_new: int, at_once: bool = False
    ) -> list[Answer]:
        """Put prompts through the engine, one after the other or all together."""
        params = SamplingParams(max_new_tokens=num_new, temperature=0.0, logprobs=0)
        return self.answers_to([request(0, each, params=params) for each in prompt_token_ids], at_once=at_once)

    def answers_to(self, requests: Sequence[Request], *, at_once: bool = False) -> list[Answer]:
        """Put requests through the engine, which get numbers of their own."""
        first = self._number
        self._number += len(requests)
        requests = [replace(each, sequence_id=(0, first + index)) for index, each in enumerate(requests)]
        answers: dict[SequenceId, Answer] = {each.sequence_id: Answer() for each in requests}
        for batch in [requests] if at_once else [[each] for each in requests]:
            for each in batch:
                self.engine.submit(each, time.monotonic())
            self._run(answers)
        return list(answers.values())

    def settle(self) -> None:
        """Wait until nothing is under way below the engine."""
        self._until(lambda: not self.engine.pending)

    def flush(self) -> None:
        """Bring everything to storage, as a worker does that leaves in good order."""
        self.engine.flush(time.monotonic())
        self.settle()

    def _run(self, answers: dict[SequenceId, Answer]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while self.engine.has_work:
            assert time.monotonic() < deadline, "the engine does not come to an end"
            outputs = self.engine.step(time.monotonic())
            for output in outputs:
                answer = answers[output.sequence_id]
                answer.token_ids += output.token_ids
                answer.admission = output.admission or answer.admission
                answer.finish = output.finish
            if not outputs and not self.engine.last_step_tokens:
                self._wait()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "something below the engine does not come to an end"
            self._wait()
            self.engine.idle(time.monotonic())

    def _wait(self) -> None:
        self._ended.wait(0.05)
        self._ended.clear()
