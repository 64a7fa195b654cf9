"""Prompts to token ids, for one model, from what its worker says about it: no model files here."""

from collections.abc import Mapping, Sequence

import jinja2
from tokenizers import Tokenizer, decoders

from gateway.errors import InvalidRequestError, Violation
from gateway.prompts.control import ControlTokenError, ControlTokens
from gateway.prompts.template import ChatTemplate, TemplateRefusal
from gateway.prompts.threads import PromptThreads
from gateway.prompts.token_bytes import TokenBytes

ChatMessage = tuple[str, str]  # role, content


class PromptEncoder:
    """Encodes prompts for one model. Pure computation, safe to use from several threads.

    Text is encoded as the tokenizer itself does it, with the special tokens its post-processor adds; whoever sends raw
    text speaks to the model directly and may spell control tokens. Chats go through the template, which places all
    control tokens: what messages spell is cut (see `gateway.prompts.control`).
    """

    def __init__(self, tokenizer_json: bytes, chat_template: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ValueError for a tokenizer that cannot be read."""
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"the worker's tokenizer cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.longest_token_bytes = _longest_token_bytes(self._tokenizer)
        self._control = ControlTokens(self._tokenizer)
        self.tokens = TokenBytes(self._tokenizer)
        self._template, self._no_template = _compile(chat_template, special_tokens)

    def encode_text(self, text: str) -> list[int]:
        return self._encode([text], add_special_tokens=True)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Raises InvalidRequestError with fields below `chat`."""
        if self._template is None:
            raise InvalidRequestError([Violation("chat", self._no_template)])
        self._check_roles(self._template, messages)
        try:
            cut = self._control.choose_cut([content for _, content in messages])
        except ControlTokenError as error:
            raise InvalidRequestError([Violation("chat.messages", str(error))]) from None
        guarded = [
            {"role": role, "content": self._guard(i, content, cut)} for i, (role, content) in enumerate(messages)
        ]
        try:
            rendered = self._template.render(guarded)
        except TemplateRefusal as error:
            raise InvalidRequestError([Violation("chat.messages", str(error).replace(cut, ""))]) from None
        return self._encode(rendered.split(cut), add_special_tokens=False)

    def _encode(self, pieces: Sequence[str], *, add_special_tokens: bool) -> list[int]:
        # The batch call releases the GIL while it works; `encode` does not.
        encodings = self._tokenizer.encode_batch_fast(list(pieces), add_special_tokens=add_special_tokens)
        return [token_id for encoding in encodings for token_id in encoding.ids]

    def _check_roles(self, template: ChatTemplate, messages: Sequence[ChatMessage]) -> None:
        violations = [
            Violation(f"chat.messages[{i}].role", "is not a role that the model's chat template knows")
            for i, (role, _) in enumerate(messages)
            if role not in template.roles
        ]
        if violations:
            raise InvalidRequestError(violations)

    def _guard(self, index: int, content: str, cut: str) -> str:
        try:
            return self._control.guard(content, cut)
        except ControlTokenError as error:
            raise InvalidRequestError([Violation(f"chat.messages[{index}].content", str(error))]) from None


class ThreadedEncoder:
    """A PromptEncoder for the event loop: the work is done in threads."""

    def __init__(self, encoder: PromptEncoder, threads: PromptThreads) -> None:
        self._encoder = encoder
        self._threads = threads

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return what a token stands for; None for an id that the tokenizer does not know. Quick: no thread needed."""
        return self._encoder.tokens.of(token_id)

    async def encode_text(self, tenant_id: str, text: str) -> list[int]:
        return await self._threads.run(tenant_id, self._encoder.encode_text, text)

    async def encode_chat(self, tenant_id: str, messages: Sequence[ChatMessage]) -> list[int]:
        """Raises InvalidRequestError with fields below `chat`."""
        return await self._threads.run(tenant_id, self._encoder.encode_chat, messages)


def _longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Return an upper bound for the bytes of text that one token stands for."""
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    # Byte-level vocabularies spell each byte as one character; all others spell characters, as added tokens do.
    lengths = (
        len(token) if byte_level and token not in added else len(token.encode())
        for token in tokenizer.get_vocab(with_added_tokens=True)
    )
    return max(lengths, default=1)


def _compile(source: str, special_tokens: Mapping[str, str]) -> tuple[ChatTemplate | None, str]:
    """Return the template, or None and why there is none."""
    if not source:
        return None, "the model has no chat template; send text or tokens instead"
    try:
        return ChatTemplate(source, special_tokens), ""
    except jinja2.TemplateSyntaxError:
        return None, "the model's chat template is faulty; send text or tokens instead"
