"""The prompt of a request, whichever way it was sent, as token ids."""

from collections.abc import Sequence

import numpy as np

from gateway.config import GatewayLimits
from gateway.dispatch.catalogue import ServedModel
from gateway.errors import InvalidRequestError, Violation
from radixgate.v1 import inference_pb2

PromptRequest = inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest


async def encode_prompt(request: PromptRequest, model: ServedModel, limits: GatewayLimits) -> Sequence[int]:
    """Return the prompt's token ids, at least one. Raises InvalidRequestError."""
    match request.WhichOneof("prompt"):
        case "text":
            return await _encode_text(request.text, model)
        case "chat":
            return await _encode_chat(request.chat, model, limits)
        case "tokens":
            return _check_token_ids(request.tokens.token_ids, model.vocab_size)
        case _:
            raise _invalid("prompt", "is required: one of text, chat, tokens")


def prompt_field(request: PromptRequest) -> str:
    """Return the path that violations of the prompt's length are reported under."""
    kind = request.WhichOneof("prompt") or "prompt"
    return {"chat": "chat.messages", "tokens": "tokens.token_ids"}.get(kind, kind)


async def _encode_text(text: str, model: ServedModel) -> Sequence[int]:
    token_ids = await model.encoder.encode_text(text) if text else []
    if not token_ids:
        raise _invalid("text", "is empty; a prompt needs at least one token")
    return token_ids


async def _encode_chat(chat: inference_pb2.ChatPrompt, model: ServedModel, limits: GatewayLimits) -> Sequence[int]:
    if not chat.messages:
        raise _invalid("chat.messages", "is empty; a chat needs at least one message")
    if len(chat.messages) > limits.max_messages:
        raise _invalid("chat.messages", f"has {len(chat.messages)} messages; at most {limits.max_messages} are allowed")
    token_ids = await model.encoder.encode_chat([(message.role, message.content) for message in chat.messages])
    if not token_ids:
        raise _invalid("chat.messages", "renders to nothing; a prompt needs at least one token")
    return token_ids


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> Sequence[int]:
    if not token_ids:
        raise _invalid("tokens.token_ids", "is empty; a prompt needs at least one token")
    ids = np.fromiter(token_ids, dtype=np.int32, count=len(token_ids))
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        first = int(outside[0])
        raise _invalid(f"tokens.token_ids[{first}]", f"is {ids[first]}; must be 0 to {vocab_size - 1}")
    return token_ids


def _invalid(field: str, description: str) -> InvalidRequestError:
    return InvalidRequestError([Violation(field, description)])
