"""What a worker tells others about the model it serves. Plain values: no torch, no transformers."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Everything a gateway needs in order to speak for a model without having its files."""

    name: str
    context_length: int  # tokens, prompt and completion together
    vocab_size: int  # token ids are 0..vocab_size-1; may exceed what the tokenizer can produce
    eos_token_ids: tuple[int, ...]
    tokenizer_json: bytes  # the `tokenizers` JSON document
    chat_template: str  # Jinja2 source; "" for a model without one
    special_tokens: Mapping[str, str]  # those that templates name: bos_token, eos_token, ...
    revision: str  # digest of weights, configuration and tokenizer; names KV outside of this process
    sampled_vocab_size: int | None = None  # ids from here on are never sampled; None: any may be
