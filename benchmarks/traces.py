"""Workloads for caches without a model: public traces where they lie beside the repository, and made ones.

Made ones come from one seed. All are in the order of their time.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cli.replay.trace import Trace, TraceRequest, open_trace
from worker.model.gguf import converted
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile, cache_folder, find_model

Tokens = NDArray[np.int32]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
VOCABULARY = 50_000
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Requests:
    """A trace that lies in memory."""

    requests: list[TraceRequest]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt) + len(request.output) for request in self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


# ------------------------------------------------------------------------------------------------------------- recorded


def mooncake(data: Path) -> Trace | None:
    """One hour of a chat service, or None where it does not lie."""
    path = data / "mooncake" / "conversation_trace.jsonl"
    return open_trace(path) if path.exists() else None


def agents(data: Path, name: str, seed: int = 0) -> Requests | None:
    """Sessions of a coding or browsing agent in SmolLM2's tokens, or None where they do not lie.

    Each keeps its own pace; they start at random within ten minutes, as if they shared a service.
    """
    paths = sorted((data / "lmcache_agent" / name).glob("*.jsonl.gz"))
    if not paths:
        return None
    tokenizer = _smollm2_tokenizer()
    rng = np.random.default_rng(seed)
    requests: list[TraceRequest] = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            session: list[dict[str, Any]] = sorted(map(json.loads, lines), key=lambda turn: int(turn["timestamp"]))
        start_s = rng.uniform(0, 600) - int(session[0]["timestamp"]) / 1e6
        encoded = tokenizer.encode_batch([turn["input"] for turn in session], add_special_tokens=False)
        requests += [
            TraceRequest(start_s + int(turn["timestamp"]) / 1e6, np.array(each.ids, dtype=np.int32), NO_TOKENS, "")
            for turn, each in zip(session, encoded, strict=True)
        ]
    return Requests(sorted(requests, key=lambda request: request.timestamp_s))


def _smollm2_tokenizer() -> Tokenizer:
    source = find_model("smollm2-135m-instruct")
    assert isinstance(source, GgufFile)
    return Tokenizer.from_file(str(converted(source, cache_folder(), SilentProgress()).path / "tokenizer.json"))


# ----------------------------------------------------------------------------------------------------------------- made


def documents(num_requests: int = 8_000, num_documents: int = 2_000, seed: int = 0) -> Requests:
    """Questions about documents of 200 to 2,000 tokens whose popularity follows Zipf's law (exponent 0.9)."""
    rng = np.random.default_rng(seed)
    texts = [_random_tokens(rng, int(length)) for length in rng.integers(200, 2_000, size=num_documents)]
    weights = np.arange(1, num_documents + 1) ** -0.9
    chosen = rng.choice(num_documents, size=num_requests, p=weights / weights.sum())
    times = rng.exponential(0.2, size=num_requests).cumsum()
    return Requests(
        [
            TraceRequest(float(now), np.concatenate([texts[each], _random_tokens(rng, 40)]), NO_TOKENS, "")
            for now, each in zip(times, chosen, strict=True)
        ]
    )


def chats(num_chats: int = 2_000, seed: int = 0) -> Requests:
    """Conversations behind 16 system prompts, outputs stored; each turn is the last one with probability 0.4."""
    rng = np.random.default_rng(seed)
    systems = [_random_tokens(rng, 512) for _ in range(16)]
    requests: list[TraceRequest] = []
    for start_s in rng.uniform(0, 1_800, size=num_chats):
        now, tokens = float(start_s), systems[rng.integers(16)]
        for _ in range(rng.geometric(0.4)):
            tokens = np.concatenate([tokens, _random_tokens(rng, int(rng.integers(20, 300)))])
            answer = _random_tokens(rng, int(rng.integers(50, 400)))
            requests.append(TraceRequest(now, tokens, answer, ""))
            tokens = np.concatenate([tokens, answer])
            now += float(rng.lognormal(4.5, 0.8))
    return Requests(sorted(requests, key=lambda request: request.timestamp_s))


def loop(num_rounds: int = 10, num_prompts: int = 500, seed: int = 0) -> Requests:
    """The same prompts over and over in the same order: an evaluation that is run again and again."""
    rng = np.random.default_rng(seed)
    prompts = [_random_tokens(rng, int(length)) for length in rng.integers(100, 1_000, size=num_prompts)]
    return Requests(
        [TraceRequest(now * 0.5, prompts[now % num_prompts], NO_TOKENS, "") for now in range(num_rounds * num_prompts)]
    )


def _random_tokens(rng: np.random.Generator, num_tokens: int) -> Tokens:
    return rng.integers(VOCABULARY, size=num_tokens, dtype=np.int32)
