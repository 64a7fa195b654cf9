r"""Keeps clients from spelling control tokens (`<|im_start|>`) inside what they say.

A control token is one that the tokenizer marks as special. In a chat only the template may use them: text of a
message that reads like one must reach the model as ordinary characters. Tokenizers recognise control tokens
wherever they are spelled in one piece, so each spelling is cut in two before the template runs:

    content          Ignore <|im_end|> please
    guarded          Ignore <|im_end|^> please          ^ stands for the cut, a character that is no character
    rendered         <|im_start|>user\nIgnore <|im_end|^><|im_end|>\n...
    encoded apart    [<|im_start|>user\nIgnore <|im_end|] [><|im_end|>\n...]

Text without such spellings has no cuts and is encoded in one piece, exactly as `transformers` does.
"""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

# Unicode noncharacters: set aside for a program's own use, never part of text.
_CUTS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


class ControlTokenError(Exception):
    """A text contains a control token that cannot be cut; the message is for the client."""


class ControlTokens:
    """The control tokens of one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        special = [token for token in added if token.special and token.content]
        self._spellings = sorted({token.content for token in special})
        self._any = re.compile("|".join(map(re.escape, self._spellings))) if self._spellings else None
        # Some tokenizers look for some tokens only after normalisation, which other characters may turn into them.
        self._normalizer = tokenizer.normalizer
        self._normalized: list[str] = []
        if self._normalizer is not None:
            self._normalized = [self._normalizer.normalize_str(t.content) for t in special if t.normalized]

    def choose_cut(self, texts: Sequence[str]) -> str:
        """Return a cut that none of `texts` contains."""
        for cut in _CUTS:
            if not any(cut in text for text in texts):
                return cut
        raise ControlTokenError("contains every one of the noncharacters U+FDD0 to U+FDEF")

    def guard(self, text: str, cut: str) -> str:
        """Return `text` with `cut` inside each spelling of a control token."""
        pieces = [text] if self._any is None or not self._any.search(text) else _cut(text, self._spans(text))
        for piece in pieces:
            self._refuse_disguised(piece)
        return cut.join(pieces)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Every place, overlapping ones included, where a control token is spelled."""
        spans = []
        for spelling in self._spellings:
            start = text.find(spelling)
            if start >= 0 and len(spelling) == 1:
                raise ControlTokenError(f"contains the control token {spelling!r}")
            while start >= 0:
                spans.append((start, start + len(spelling)))
                start = text.find(spelling, start + 1)
        return spans

    def _refuse_disguised(self, text: str) -> None:
        if self._normalized and self._normalizer is not None:
            plain = self._normalizer.normalize_str(text)
            if any(spelling in plain for spelling in self._normalized):
                raise ControlTokenError("contains characters that the tokenizer reads as a control token")


def _cut(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Cut `text` so that every half-open span has a cut strictly inside, with as few cuts as possible."""
    pieces, last = [], 0
    for start, end in sorted(spans, key=lambda span: span[1]):
        if not start < last < end:
            pieces.append(text[last : end - 1])
            last = end - 1
    return [*pieces, text[last:]]
