"""From the pipeline's messages to OpenAI's choices: the two forms that they have, in chats and in texts."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.http.errors import Json
from gateway.http.token_texts import TokenText, bytes_of, spelled
from radixgate.v1 import inference_pb2

_FINISH = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
}
Message = inference_pb2.GenerateResponse


@dataclass(slots=True)
class Completion:
    """All that has come of one completion."""

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[inference_pb2.TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, message: Message) -> None:
        self.token_ids.extend(message.token_ids)
        self.logprobs.extend(message.logprobs)
        if message.text:
            self.texts.append(message.text)
        self.finish_reason = finish_reason(message)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def finish_reason(message: Message) -> str | None:
    return _FINISH.get(message.finish_reason)


class Form(Protocol):
    """How one kind of answer is written down. Belongs to one request."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def choice(self, index: int, completion: Completion) -> Json:
        """Return a completion that has ended."""
        ...

    def deltas(self, index: int, message: Message, *, is_first: bool) -> list[Json]:
        """Return what a message adds to its completion, as the choices of as many chunks."""
        ...


class ChatForm:
    """Chat completions."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, token_text: TokenText | None, wants_token_ids: bool) -> None:
        """`token_text`: what tokens stand for, where log probabilities are wanted."""
        self._token_text = token_text
        self._wants_token_ids = wants_token_ids

    def choice(self, index: int, completion: Completion) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": completion.finish_reason,
            **self._token_ids(completion.token_ids),
        }

    def deltas(self, index: int, message: Message, *, is_first: bool) -> list[Json]:
        deltas = []
        if is_first:
            deltas.append(_delta(index, {"role": "assistant", "content": "", "refusal": None}))
        logprobs = self._logprobs(message.token_ids, message.logprobs)
        token_ids = self._token_ids(message.token_ids)
        if message.text or logprobs is not None or token_ids:
            deltas.append({**_delta(index, {"content": message.text}, logprobs), **token_ids})
        if reason := finish_reason(message):
            deltas.append(_delta(index, {}, reason=reason))
        return deltas

    def _token_ids(self, token_ids: Sequence[int]) -> Json:
        return {"token_ids": list(token_ids)} if self._wants_token_ids and token_ids else {}

    def _logprobs(self, token_ids: Sequence[int], entries: Sequence[inference_pb2.TokenLogprobs]) -> Json | None:
        if self._token_text is None or not token_ids:
            return None
        entry = self._entry
        content = [
            {
                **entry(token_id, found.logprob),
                "top_logprobs": [entry(top.token_id, top.logprob) for top in found.top],
            }
            for token_id, found in zip(token_ids, entries, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> Json:
        assert self._token_text is not None
        raw = self._token_text(token_id)
        return {"token": spelled(token_id, raw), "logprob": logprob, "bytes": bytes_of(raw)}


def _delta(index: int, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


class TextForm:
    """Completions of plain prompts."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, token_text: TokenText | None, wants_token_ids: bool) -> None:
        """`token_text`: what tokens stand for, where log probabilities are wanted."""
        self._token_text = token_text
        self._wants_token_ids = wants_token_ids
        self._offsets: dict[int, _Offset] = {}  # by choice

    def choice(self, index: int, completion: Completion) -> Json:
        return {
            "index": index,
            "text": completion.text,
            "logprobs": self._logprobs(index, completion.token_ids, completion.logprobs),
            "finish_reason": completion.finish_reason,
            **self._token_ids(completion.token_ids),
        }

    def deltas(self, index: int, message: Message, *, is_first: bool) -> list[Json]:
        logprobs = self._logprobs(index, message.token_ids, message.logprobs)
        reason = finish_reason(message)
        token_ids = self._token_ids(message.token_ids)
        if not message.text and logprobs is None and reason is None and not token_ids:
            return []
        return [{"index": index, "text": message.text, "logprobs": logprobs, "finish_reason": reason, **token_ids}]

    def _token_ids(self, token_ids: Sequence[int]) -> Json:
        return {"token_ids": list(token_ids)} if self._wants_token_ids and token_ids else {}

    def _logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[inference_pb2.TokenLogprobs]
    ) -> Json | None:
        if self._token_text is None or not token_ids:
            return None
        offset = self._offsets.setdefault(index, _Offset())
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in zip(token_ids, entries, strict=True):
            raw = self._token_text(token_id)
            chosen = spelled(token_id, raw)
            found["tokens"].append(chosen)
            found["token_logprobs"].append(entry.logprob)
            top = {spelled(each.token_id, self._token_text(each.token_id)): each.logprob for each in entry.top}
            found["top_logprobs"].append({**top, chosen: entry.logprob})
            found["text_offset"].append(offset.chars)
            offset.add(raw or b"")
        return found


class _Offset:
    """How many characters the tokens of a completion have made so far."""

    def __init__(self) -> None:
        self.chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, raw: bytes) -> None:
        self.chars += len(self._decoder.decode(raw))


MakeForm = Callable[[TokenText | None, bool], Form]  # what tokens stand for, and whether their ids are wanted


def usage_of(usages: Sequence[inference_pb2.Usage]) -> Json:
    """Return the usage of all prompts together. `prompt_tokens_details` says more than OpenAI's does."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    device, host, storage = (
        sum(getattr(usage.cached, tier) for usage in usages) for tier in ("device", "host", "storage")
    )
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": device + host + storage,
            "cached_device_tokens": device,
            "cached_host_tokens": host,
            "cached_storage_tokens": storage,
            "public_prefix_tokens": sum(usage.public_prefix_tokens for usage in usages),
            "cached_public_tokens": sum(usage.cached_public_tokens for usage in usages),
        },
    }
