"""A model without weights for whole workers: answers at once, exactly, and checks every slot it reads.

Its tokenizer knows each byte as a token, so any text can be a prompt.
"""

from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from worker.batch import Executor, TextStreamFactory
from worker.config import CacheConfig
from worker.engine.fake import FakeExecutor, NumberText
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


@dataclass(frozen=True)
class FakeModel:
    """Fits `worker.app.ServedModel`."""

    context_length: int = 4096
    text: TextStreamFactory = field(default_factory=NumberText)

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

    def executor(self, num_slots: int) -> Executor:
        return FakeExecutor(num_slots, VOCAB_SIZE)
