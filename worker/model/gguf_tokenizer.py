"""Completes the tokenizer that transformers builds from a GGUF file.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) but does not spell it out. transformers knows some of the
names and silently takes plain byte level for the rest, which splits numbers in the wrong places for many models.
Here each name is known or refused: wrong token ids would make a model subtly worse and never fail.
"""

from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from worker.errors import UnsupportedModelError

# Byte level with the pattern of GPT-2, and nothing before it.
_BYTE_LEVEL = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais"})
# The same, with each digit on its own first.
_DIGITS_FIRST = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# Control tokens that end a turn wherever there is one. Files name only one of several end tokens.
_TURN_ENDS = ("<end_of_turn>", "<|eot_id|>", "<|im_end|>")
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def read_gguf_tokenizer(gguf: Path) -> TokenizersBackend:
    """Return the tokenizer that `gguf` describes. Raises UnsupportedModelError for a pre-tokenizer unknown here."""
    metadata, _ = read_gguf_metadata(str(gguf))
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    assert isinstance(tokenizer, TokenizersBackend)
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return tokenizer  # not byte-level BPE: there is no pre-tokenizer to name
    name = metadata.get("tokenizer.ggml.pre")
    if name in _DIGITS_FIRST:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in _BYTE_LEVEL and name not in GGUF_PRE_TOKENIZER_SPLITS:
        raise UnsupportedModelError(f"{gguf.name}: its pre-tokenizer {name!r} is not known, token ids would be wrong")
    return tokenizer


def end_token_ids(gguf: Path, tokenizer: TokenizersBackend) -> list[int]:
    """Return every token that ends what the model writes, in rising order."""
    metadata, _ = read_gguf_metadata(str(gguf))
    added = tokenizer.added_tokens_decoder.items()
    ends_turn = [token_id for token_id, token in added if token.special and token.content in _TURN_ENDS]
    return sorted({int(metadata[key]) for key in _END_KEYS if key in metadata} | set(ends_turn))
