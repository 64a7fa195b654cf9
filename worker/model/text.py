"""Text from tokens as they come: whole characters only, and cut exactly where a stop string begins.

The concatenation of what a stream returns is what decoding all its tokens behind the prompt gives.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from worker.batch import Int32Array, TextDelta
from worker.model.stop_strings import StopMatcher

# Tokens of the prompt that a stream decodes along: decoders look at neighbours (spaces between words), not further.
_CONTEXT_TOKENS = 8
# Tokens that may wait for the rest of a character. The longest has 4 bytes; beyond that the bytes are no UTF-8.
_MAX_PENDING = 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerTextStreams:
    """Opens text streams that decode with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        # A model's vocabulary may be padded with ids that its tokenizer doesn't know.
        self._textual = frozenset(tokenizer.get_vocab().values()) - special
        self._alone: dict[
            int, str
        ] = {}  # text of tokens by themselves, as far as it was needed; of the vocabulary's size

    def open(self, prompt_token_ids: Int32Array, stop: tuple[str, ...]) -> "TokenizerTextStream":
        tail = [int(token_id) for token_id in prompt_token_ids[-2 * _CONTEXT_TOKENS :]]
        context = [token_id for token_id in tail if token_id in self._textual][-_CONTEXT_TOKENS:]
        decoder = IncrementalDecoder(self._tokenizer, self._textual, self._alone, context)
        return TokenizerTextStream(decoder, StopMatcher(stop) if stop else None)


class TokenizerTextStream:
    def __init__(self, decoder: "IncrementalDecoder", matcher: StopMatcher | None) -> None:
        self._decoder = decoder
        self._matcher = matcher

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        push = self._decoder.push
        text = push(token_ids[0]) if len(token_ids) == 1 else "".join([push(token_id) for token_id in token_ids])
        return TextDelta(text) if self._matcher is None else self._matcher.push(text)

    def flush(self) -> str:
        rest = self._decoder.flush()
        if self._matcher is None:
            return rest
        found = self._matcher.push(rest)
        return found.text if found.stopped else found.text + self._matcher.flush()


class IncrementalDecoder:
    """Decodes token by token.

    Holds the tokens behind the last whole character and a few before them as context; `_sent` is the part of their
    text that has been returned (or belongs to the prompt). Special tokens give no text and are dropped, and so are
    ids without a token: all but `textual`.

    `tokenizers.DecodeStream` does the same, but has no flush, holds invalid UTF-8 back without bound, and raises
    where a decoder changes text it has returned (byte fallback does, around invalid bytes); here such text stays.
    """

    def __init__(
        self, tokenizer: Tokenizer, textual: frozenset[int], alone: dict[int, str], context: list[int]
    ) -> None:
        """`alone` remembers, for all decoders of one tokenizer, the text of tokens by themselves."""
        self._tokenizer = tokenizer
        self._textual = textual
        self._alone = alone
        self._context = context
        self._pending: list[int] = []
        self._sent = self._decode(context)

    def push(self, token_id: int) -> str:
        if token_id not in self._textual:
            return ""
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        unfinished = text.endswith(_REPLACEMENT)
        if (unfinished or text == self._sent) and len(self._pending) < _MAX_PENDING:
            return ""
        # Of invalid bytes, at most the last can still become a character.
        return self._advance(text, held=_REPLACEMENT if unfinished else "")

    def flush(self) -> str:
        """Return what is held back, an unfinished character as U+FFFD."""
        return self._advance(self._decode(self._context + self._pending), held="")

    def _advance(self, text: str, held: str) -> str:
        """Return all of `text` that is new, but for `held` at its end."""
        new = self._behind_sent(text).removesuffix(held)
        if self._pending:
            self._context, self._pending = self._pending, []
            text = self._decode_context()
        self._sent = text.removesuffix(held)
        return new

    def _behind_sent(self, text: str) -> str:
        if text.startswith(self._sent):
            return text[len(self._sent) :]
        # The prompt ended inside a character, and the output has finished it.
        begun = self._sent.removesuffix(_REPLACEMENT)
        if text.startswith(begun):
            return text[len(begun) :]
        return self._decode(self._pending)

    def _decode_context(self) -> str:
        """Most often that is one token, which then was decoded before: text is made of few different ones."""
        if len(self._context) != 1:
            return self._decode(self._context)
        (token_id,) = self._context
        text = self._alone.get(token_id)
        if text is None:
            text = self._alone[token_id] = self._decode(self._context)
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)
