"""What single tokens stand for, byte by byte: for log probabilities, which name tokens one at a time.

A token of a byte-level vocabulary may be a part of a character, so text would not do.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile("<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of each token of one tokenizer. Safe to use from several threads: what two find out is the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {token_id: token.content.encode() for token_id, token in added.items()}
        self._spelled = _reading(list(_steps(json.loads(tokenizer.to_str()).get("decoder"))))

    def of(self, token_id: int) -> bytes | None:
        """Return a token's bytes; None for an id that the tokenizer does not know, as models pad their vocabulary."""
        known = self._bytes.get(token_id)  # at most as many as there are tokens
        if known is None and (token := self._spelling(token_id)) is not None:
            known = self._bytes[token_id] = self._spelled(token)
        return known

    def _spelling(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id) if token_id >= 0 else None


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the single steps of a decoder, in order."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _reading(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """Return how tokens of a vocabulary with this decoder are read."""
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _read_byte_level
    replaced = [
        (step["pattern"]["String"], step["content"])
        for step in steps
        if step["type"] == "Replace" and "String" in step["pattern"]
    ]
    replaced += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    prefixes = [step["prefix"] for step in steps if step["type"] == "WordPiece"]

    def read(token: str) -> bytes:
        if "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        for prefix in prefixes:
            token = token.removeprefix(prefix)
        for written, meant in replaced:
            token = token.replace(written, meant)
        return token.encode()

    return read


def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of byte-level vocabularies stands for.

    Printable bytes of Latin-1 stand for themselves, the others, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()


def _read_byte_level(token: str) -> bytes:
    if not all(letter in _BYTES for letter in token):
        return token.encode()
    return bytes(_BYTES[letter] for letter in token)
