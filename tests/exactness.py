"""What the token-exactness tests share: an engine on the real model, and the comparison with the reference.

A flip where the reference's two best logits lie less than TIE apart is a tie: two correct ways to add up may differ
there. Ties are counted, and more than one in a hundred prompts is a failure.
"""

import warnings
from collections.abc import Sequence

from hicache.cache import PrefixCache
from hicache.keys import Namespace
from tests.driver import NAMESPACE, Answer, request, run
from tests.reference import Reference
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.engine.observer import NullObserver
from worker.engine.ports import FinishReason
from worker.model.loading import LoadedModel

TIE = 1e-3
MAX_TIES = 0.01
NUM_PROMPTS = 40
NUM_NEW = 16


class Recorder(NullObserver):
    """Counts what a test must know to have happened."""

    def __init__(self) -> None:
        self.pauses = 0
        self.most_side_by_side = 0  # the largest number of sequences in one step

    def paused(self, tenant: str, adapter: str) -> None:
        self.pauses += 1

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None:
        self.most_side_by_side = max(self.most_side_by_side, num_sequences)


class Bench:
    """An engine on a fresh cache, and the prompts put through it."""

    def __init__(self, model: LoadedModel, *, num_slots: int = 12_288, page_size: int = 1, **engine: int) -> None:
        info = model.info
        self.cache = PrefixCache(num_slots, page_size=page_size)
        self.observer = Recorder()
        self.engine = Engine(
            self.cache,
            InlineExecutor(model.executor(model.pool(num_slots))),
            model.text,
            ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
            EngineConfig(check=True, **engine),  # type: ignore[arg-type]
            observer=self.observer,
        )
        self._number = 0

    def answers(
        self,
        prompt_token_ids: Sequence[Sequence[int]],
        namespaces: Sequence[Namespace] | None = None,
        *,
        num_new: int = NUM_NEW,
    ) -> list[Answer]:
        requests = []
        for index, token_ids in enumerate(prompt_token_ids):
            self._number += 1
            namespace = namespaces[index] if namespaces else NAMESPACE
            params = SamplingParams(max_new_tokens=num_new, temperature=0.0, logprobs=0)
            requests.append(request(self._number, token_ids, namespace=namespace, params=params))
        return run(self.engine, requests)


def own_namespaces(number: int) -> list[Namespace]:
    return [Namespace(index.to_bytes(16, "little")) for index in range(number)]


def assert_exact(answers: Sequence[Answer], references: Sequence[Reference]) -> None:
    """Every answer is the reference's up to its end, or up to a tie; then compare no further."""
    ties = []
    for index, (answer, expected) in enumerate(zip(answers, references, strict=True)):
        assert isinstance(answer.finish, FinishReason), answer.finish
        if answer.token_ids == list(expected.token_ids):
            continue
        differing = [a == b for a, b in zip(answer.token_ids, expected.token_ids, strict=False)] + [False]
        first = differing.index(False)
        assert first < len(expected.token_ids), f"prompt {index}: goes on after the reference's end"
        assert expected.margins[first] < TIE, (
            f"prompt {index}: token {first} is {answer.token_ids[first : first + 1]}, the reference has "
            f"{expected.token_ids[first]} by a margin of {expected.margins[first]:.4f}"
        )
        ties.append(index)
    if ties:
        warnings.warn(f"ties at prompts {ties}", stacklevel=2)
    assert len(ties) <= MAX_TIES * len(references), f"ties at prompts {ties}"


def token_ids(references: Sequence[Reference]) -> list[list[int]]:
    return [list(each.prompt_token_ids) for each in references]
