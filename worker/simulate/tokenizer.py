"""The tokenizer of a model that is not there: each byte is a token, so any text can be a prompt. Made in code."""

from collections.abc import Mapping
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NUM_BYTES: Final = 256
START_TOKEN: Final = "<|im_start|>"  # noqa: S105 - no password
END_TOKEN: Final = "<|im_end|>"  # noqa: S105 - no password
START_ID: Final = NUM_BYTES
END_ID: Final = NUM_BYTES + 1
NUM_TOKENS: Final = NUM_BYTES + 2
READABLE: Final = range(94)
"""The tokens of ASCII's characters from ! to ~, which come first in the alphabet."""

SPECIAL_TOKENS: Final[Mapping[str, str]] = {"bos_token": START_TOKEN, "eos_token": END_TOKEN}
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges; ids of characters are in the order of the byte-level alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # In the order of their ids, behind the bytes.
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (START_TOKEN, END_TOKEN)])
    return tokenizer


def letters(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the 32 tokens that answers consist of: small letters and what stands between words."""
    return tuple(tokenizer.encode("abcdefghijklmnopqrstuvwxyz ,.-'\n", add_special_tokens=False).ids)
