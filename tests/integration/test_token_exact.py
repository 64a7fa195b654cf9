"""The cache never changes an answer: greedy output in fp32 equals `transformers` generate, token for token.

A flip where the reference's two best logits lie less than TIE apart is a tie: two correct ways to add up may differ
there. Ties are counted, and more than one in a hundred prompts is a failure.
"""

import warnings
from collections.abc import Sequence

import pytest

from hicache.cache import PrefixCache
from hicache.keys import Namespace
from tests.driver import NAMESPACE, Answer, request, run
from tests.reference import Reference, greedy_reference, prompts
from worker.config import EngineConfig, ModelConfig
from worker.engine.engine import Engine
from worker.engine.limits import ModelLimits
from worker.engine.observer import NullObserver
from worker.engine.ports import FinishReason
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

TIE = 1e-3
MAX_TIES = 0.01
NUM_NEW = 32


class CountPauses(NullObserver):
    def __init__(self) -> None:
        self.pauses = 0

    def paused(self, tenant: str, adapter: str) -> None:
        self.pauses += 1


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(ModelConfig(dtype="fp32", threads=1), SilentProgress())


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> list[Reference]:
    """At least 64 different prompts with what `generate` answers."""
    references = greedy_reference(model, prompts(64), max_new_tokens=NUM_NEW)
    assert len({tuple(each.prompt_token_ids) for each in references}) >= 64
    return references


class Bench:
    """An engine on a fresh cache, and the prompts put through it."""

    def __init__(self, model: LoadedModel, *, num_slots: int = 12_288, page_size: int = 1, **engine: int) -> None:
        info = model.info
        self.cache = PrefixCache(num_slots, page_size=page_size)
        self.observer = CountPauses()
        self.engine = Engine(
            self.cache,
            model.executor(num_slots),
            model.text,
            ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
            EngineConfig(check=True, **engine),  # type: ignore[arg-type]
            observer=self.observer,
        )
        self._number = 0

    def answers(
        self, prompt_token_ids: Sequence[Sequence[int]], namespaces: Sequence[Namespace] | None = None
    ) -> list[Answer]:
        requests = []
        for index, token_ids in enumerate(prompt_token_ids):
            self._number += 1
            namespace = namespaces[index] if namespaces else NAMESPACE
            requests.append(request(self._number, token_ids, namespace=namespace))
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


def test_cold_one_at_a_time(model: LoadedModel, reference: list[Reference]) -> None:
    bench = Bench(model, max_running=1)
    answers = bench.answers(token_ids(reference)[:16], own_namespaces(16))

    assert_exact(answers, reference[:16])
    assert [answer.cached for answer in answers] == [0] * 16


@pytest.mark.parametrize("page_size", [1, 16])
def test_cold_and_warm_thirty_two_at_once(model: LoadedModel, reference: list[Reference], page_size: int) -> None:
    bench = Bench(model, page_size=page_size, max_running=32)
    namespaces = own_namespaces(len(reference))
    cold = bench.answers(token_ids(reference), namespaces)
    warm = bench.answers(token_ids(reference), namespaces)

    assert_exact(cold, reference)
    assert_exact(warm, reference)
    assert [answer.cached for answer in cold] == [0] * len(reference)
    longest = [(len(each.prompt_token_ids) - 1) // page_size * page_size for each in reference]
    assert [answer.cached for answer in warm] == longest


def test_after_a_split_inside_a_node(model: LoadedModel, reference: list[Reference]) -> None:
    """Another prompt that shares the first half was there before: the hit ends, and the node splits, inside an edge."""
    bench = Bench(model)
    namespaces = own_namespaces(len(reference))
    halves = [len(each.prompt_token_ids) // 2 for each in reference]
    detours = [
        [*ids[:half], (ids[half] + 1) % 40_000, *ids[half + 1 :]]
        for ids, half in zip(token_ids(reference), halves, strict=True)
    ]
    bench.answers(detours, namespaces)
    answers = bench.answers(token_ids(reference), namespaces)

    assert_exact(answers, reference)
    assert [answer.cached for answer in answers] == halves


def test_with_a_pool_so_small_that_sequences_are_evicted_and_paused(
    model: LoadedModel, reference: list[Reference]
) -> None:
    longest = max(len(each.prompt_token_ids) for each in reference) + NUM_NEW
    bench = Bench(model, num_slots=2 * longest, max_running=8, headroom_tokens=1)
    answers = bench.answers(token_ids(reference))

    assert_exact(answers, reference)
    assert bench.observer.pauses > 0
    assert bench.cache.stats().evicted_tokens > 0
    for answer, each in zip(answers, reference, strict=True):
        assert answer.admission is not None
        assert answer.admission.prompt_tokens == len(each.prompt_token_ids)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefilled_in_chunks(model: LoadedModel, reference: list[Reference], chunk: int) -> None:
    bench = Bench(model, max_chunk_tokens=chunk)
    answers = bench.answers(token_ids(reference), own_namespaces(len(reference)))

    assert_exact(answers, reference)
    assert [answer.cached for answer in answers] == [0] * len(reference)
