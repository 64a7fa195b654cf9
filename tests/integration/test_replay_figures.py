"""The figures of a replay against caches that are too simple to be wrong, and against published ones where known."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cli.replay.simulator import CacheSize, replay
from cli.replay.trace import Trace, TraceRequest, open_trace
from tests.tools import REPOSITORY
from worker.model.gguf import converted
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile, cache_folder, find_model

SYNTHETIC = REPOSITORY / "tests" / "data" / "chats.jsonl"
DATA = REPOSITORY.parent / "shared" / "data"  # public traces, where they lie beside the repository
MOONCAKE = DATA / "mooncake" / "conversation_trace.jsonl"
GSM8K = DATA / "gsm8k"

PAGE_SIZE = 16


@dataclass(frozen=True)
class Requests:
    """A trace that lies in memory."""

    requests: Sequence[TraceRequest]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt) + len(request.output) for request in self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def pagewise_lru(requests: Iterable[TraceRequest], num_slots: int, page_size: int) -> float:
    """Return the hit rate of a cache of single pages in LRU order, each named by all that comes before it.

    Of the pages of one request the deepest counts as used first; evicted is what is too much when all is stored.
    """
    pages: OrderedDict[int, None] = OrderedDict()
    numbers: dict[tuple[int | str, bytes], int] = {}  # of prefixes, by the prefix before the last page, and that page
    hits = tokens = 0
    for request in requests:
        stored = np.concatenate([request.prompt, request.output[:-1]])
        before: int | str = request.tenant
        prefixes: list[int] = []
        for start in range(0, len(stored) - page_size + 1, page_size):
            before = numbers.setdefault((before, stored[start : start + page_size].tobytes()), len(numbers))
            prefixes.append(before)
        most = (len(request.prompt) - 1) // page_size
        hits += page_size * next((end for end, prefix in enumerate(prefixes[:most]) if prefix not in pages), most)
        tokens += len(request.prompt)
        for prefix in reversed(prefixes):
            pages[prefix] = None
            pages.move_to_end(prefix)
        while len(pages) > num_slots // page_size:
            pages.popitem(last=False)
    return hits / tokens


@pytest.mark.parametrize("num_slots", [1024, 4096, 16384, 2**20])
@pytest.mark.parametrize("page_size", [1, 16])
def test_lru_hits_what_a_cache_of_single_pages_hits(num_slots: int, page_size: int) -> None:
    trace = open_trace(SYNTHETIC)
    run = replay(trace, CacheSize(device_slots=num_slots, page_size=page_size))
    # A repeated prompt's last page is computed anew beside the old one, which takes a page more for a moment.
    assert run.hit_rate == pytest.approx(pagewise_lru(trace, num_slots, page_size), abs=0.005)
    assert run.hit_rate > 0


def test_two_tiers_hit_about_what_one_of_their_size_would() -> None:
    trace = open_trace(SYNTHETIC)
    device = replay(trace, CacheSize(device_slots=2048))
    tiered = replay(trace, CacheSize(device_slots=2048, host_slots=6144))
    together = replay(trace, CacheSize(device_slots=8192))
    assert tiered.device == pytest.approx(device.hit_rate, abs=0.02)
    assert device.hit_rate < tiered.hit_rate <= together.hit_rate + 0.02
    assert tiered.hit_rate > (device.hit_rate + together.hit_rate) / 2


def require(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} does not lie in {DATA.parent.name}/{DATA.name} beside the repository")
    return path


@pytest.fixture(scope="module")
def conversations() -> Trace:
    return open_trace(require(MOONCAKE))


@pytest.mark.parametrize(
    ("num_slots", "percent"),
    [(2**16, 4.27), (2**18, 4.30), (2**20, 5.64), (2**22, 18.90), (2**24, 34.37), (None, 37.36)],
)
def test_the_mooncake_conversations_hit_what_an_independent_simulator_found(
    conversations: Trace, num_slots: int | None, percent: float
) -> None:
    run = replay(conversations, CacheSize(device_slots=num_slots, page_size=PAGE_SIZE))
    assert 100 * run.hit_rate == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize(
    ("device_slots", "host_slots", "on_device", "percent"),
    [(2**18, 3 * 2**18, 4.30, 5.64), (2**20, 3 * 2**20, 5.64, 18.90), (2**20, 15 * 2**20, 5.64, 34.37)],
)
def test_two_exclusive_tiers_hit_what_one_of_their_size_does(
    conversations: Trace, device_slots: int, host_slots: int, on_device: float, percent: float
) -> None:
    run = replay(conversations, CacheSize(device_slots=device_slots, host_slots=host_slots, page_size=PAGE_SIZE))
    assert 100 * run.device == pytest.approx(on_device, abs=0.1)
    assert 100 * run.hit_rate == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize(("num_slots", "lru_percent", "factor"), [(2**20, 5.64, 1.5), (2**22, 18.90, 1.05)])
def test_lhd_hits_more_than_lru_where_the_pool_is_small(
    conversations: Trace, num_slots: int, lru_percent: float, factor: float
) -> None:
    run = replay(conversations, CacheSize(device_slots=num_slots, page_size=PAGE_SIZE, policy="lhd"))
    assert 100 * run.hit_rate > factor * lru_percent


@pytest.fixture(scope="module")
def gsm8k() -> Requests:
    """1,319 questions behind the same five worked examples, in SmolLM2's tokens."""
    source = find_model("smollm2-135m-instruct")
    assert isinstance(source, GgufFile)
    folder = converted(source, cache_folder(), SilentProgress())
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    examples = list(_problems(require(GSM8K / "train_head40.jsonl"), 5))
    shots = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in examples)
    questions = [question for question, _ in _problems(GSM8K / "test.jsonl", 1319)]
    prompts = [f"{shots}Question: {question}\nAnswer:" for question in questions]
    encoded = tokenizer.encode_batch(prompts, add_special_tokens=False)
    none = np.empty(0, dtype=np.int32)
    return Requests(
        [TraceRequest(float(now), np.array(each.ids, dtype=np.int32), none, "") for now, each in enumerate(encoded)]
    )


def _problems(path: Path, count: int) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8") as lines:
        for line in islice(lines, count):
            problem = json.loads(line)
            yield problem["question"], problem["answer"]


@pytest.mark.model
@pytest.mark.parametrize(("page_size", "percent"), [(1, 91.44), (16, 90.70), (64, 85.08)])
def test_five_examples_before_every_question_are_hit_page_by_page(
    gsm8k: Requests, page_size: int, percent: float
) -> None:
    run = replay(gsm8k, CacheSize(page_size=page_size))
    assert run.hit_rate == pytest.approx(pagewise_lru(gsm8k, gsm8k.num_tokens + 64, page_size))
    assert 100 * run.hit_rate == pytest.approx(percent, abs=0.1)
