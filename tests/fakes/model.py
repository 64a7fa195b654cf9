"""A model without weights for whole workers: answers at once, exactly, and checks every slot it reads.

Its tokenizer knows each byte as a token, so any text can be a prompt.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hicache.tiers.device import DevicePool, LayerShape
from worker.batch import Batch, Executor, SampledToken, TextStreamFactory
from worker.config import CacheConfig, EngineConfig
from worker.engine.fake import FakeAdapters, FakeExecutor, FakeTicket, NumberText
from worker.lora.errors import AdapterError
from worker.lora.model_adapters import LoadObserver
from worker.lora.weights import AdapterWeights, LowRank
from worker.model.info import ModelInfo

NUM_BYTES = 256
EOS = NUM_BYTES
VOCAB_SIZE = NUM_BYTES + 8
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of 256 bytes and no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def write_fake_adapter(folder: Path, revision: str, rank: int = 4) -> str:
    """Write an adapter that a FakeModel reads; return its folder. Its revision is what it computes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fake_adapter.json").write_text(json.dumps({"revision": revision, "rank": rank}))
    return str(folder)


class FakeModelAdapters(FakeAdapters):
    """Fits `worker.lora.model_adapters.ModelAdapters`."""

    def __init__(self) -> None:
        super().__init__(num_places=4)
        self.reading = threading.Event()  # cleared, it makes whoever reads wait
        self.reading.set()
        self.kept: set[str] = set()

    def read(self, folder: Path) -> AdapterWeights:
        self.reading.wait()
        try:
            told = json.loads((folder / "fake_adapter.json").read_text())
        except OSError as error:
            raise AdapterError("fake_adapter.json", f"missing in {folder}") from error
        low_rank = LowRank(torch.zeros(told["rank"], 4), torch.zeros(4, told["rank"]), 1.0)
        return AdapterWeights(told["revision"], {"layers.0.q_proj": low_rank, "layers.0.v_proj": low_rank})

    def add(self, weights: AdapterWeights) -> None:
        self.kept.add(weights.revision)

    def load(self, revision: str, place: int) -> FakeTicket:
        assert revision in self.kept, f"the weights of {revision} are not here"
        return super().load(revision, place)

    def forget(self, revision: str, place: int | None) -> None:
        self.kept.discard(revision)
        super().forget(revision, place)

    def close(self) -> None:
        self.reading.set()


@dataclass(frozen=True)
class FakeModel:
    """Fits `worker.app.ServedModel`."""

    context_length: int = 4096
    text: TextStreamFactory = field(default_factory=NumberText)
    lora: FakeModelAdapters = field(default_factory=FakeModelAdapters)

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="fake",
            context_length=self.context_length,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS,),
            tokenizer_json=byte_tokenizer().to_str().encode(),
            chat_template=CHAT_TEMPLATE,
            special_tokens={"eos_token": "<|end|>"},
            revision="fake",
        )

    def num_slots(self, cache: CacheConfig) -> int:
        return cache.num_slots or 4096

    def pool(self, num_slots: int) -> DevicePool:
        return DevicePool([LayerShape(1, 1, 1)], num_slots, torch.float32, "cpu")

    def executor(self, pool: DevicePool) -> Executor:
        return FakeExecutor(pool.num_slots, VOCAB_SIZE, self.lora)

    def adapters(self, config: EngineConfig, on_done: Callable[[], None], observer: LoadObserver) -> FakeModelAdapters:
        return self.lora


class Pace:
    """Lets an engine make as many steps as a test allows. Leaving the `with` block lets it go on as it likes."""

    def __init__(self) -> None:
        self.begun: list[int] = []  # the number of sequences in each step that has begun
        self._allowed = threading.Semaphore(0)
        self._free = False

    def allow_one(self) -> None:
        self._allowed.release()

    def begin(self, num_sequences: int) -> None:
        """A step is about to run; return when it may."""
        self.begun.append(num_sequences)
        if not self._free:
            self._allowed.acquire()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._free = True
        self._allowed.release()  # for the step that waits already


class PacedExecutor:
    def __init__(self, executor: Executor, pace: Pace) -> None:
        self._executor = executor
        self._pace = pace

    def run(self, batch: Batch) -> list[SampledToken]:
        self._pace.begin(batch.num_sequences)
        return self._executor.run(batch)


@dataclass(frozen=True)
class PacedModel(FakeModel):
    """A FakeModel that makes the steps its pace allows."""

    pace: Pace = field(default_factory=Pace)

    def executor(self, pool: DevicePool) -> Executor:
        return PacedExecutor(super().executor(pool), self.pace)
