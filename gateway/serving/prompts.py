"""The prompt of a request, whichever way it was sent, as token ids."""

from collections.abc import Sequence

import numpy as np

from gateway.config import GatewayLimits
from gateway.dispatch.catalogue import ServedModel
from gateway.errors import InvalidRequestError, Violation
from radixgate.v1 import inference_pb2

PromptRequest = inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest


async def encode_prompt(
    request: PromptRequest, tenant_id: str, model: ServedModel, limits: GatewayLimits, room: int
) -> Sequence[int]:
    """Return the prompt's token ids, at least one. Raises InvalidRequestError.

    What has more bytes than `room` tokens can stand for is refused before any work is spent on it.
    """
    match request.WhichOneof("prompt"):
        case "text":
            _check_bytes("text", len(request.text.encode()), model, room)
            return await _encode_text(request.text, tenant_id, model)
        case "chat":
            _check_messages(request.chat, limits)
            _check_bytes("chat.messages", _bytes_of(request.chat), model, room)
            return await _encode_chat(request.chat, tenant_id, model)
        case "tokens":
            return _check_token_ids(request.tokens.token_ids, model.vocab_size)
        case _:
            raise _invalid("prompt", "is required: one of text, chat, tokens")


def prompt_field(request: PromptRequest) -> str:
    """Return the path that violations of the prompt's length are reported under."""
    kind = request.WhichOneof("prompt") or "prompt"
    return {"chat": "chat.messages", "tokens": "tokens.token_ids"}.get(kind, kind)


async def _encode_text(text: str, tenant_id: str, model: ServedModel) -> Sequence[int]:
    token_ids = await model.encoder.encode_text(tenant_id, text) if text else []
    if not token_ids:
        raise _invalid("text", "is empty; a prompt needs at least one token")
    return token_ids


def _check_bytes(field: str, num_bytes: int, model: ServedModel, room: int) -> None:
    most = room * model.longest_token_bytes
    if num_bytes > most:
        raise _invalid(
            field, f"has {num_bytes} bytes of UTF-8; {room} tokens, all there is room for, have at most {most}"
        )


def _check_messages(chat: inference_pb2.ChatPrompt, limits: GatewayLimits) -> None:
    if not chat.messages:
        raise _invalid("chat.messages", "is empty; a chat needs at least one message")
    if len(chat.messages) > limits.max_messages:
        raise _invalid("chat.messages", f"has {len(chat.messages)} messages; at most {limits.max_messages} are allowed")


def _bytes_of(chat: inference_pb2.ChatPrompt) -> int:
    return sum(len(message.role.encode()) + len(message.content.encode()) for message in chat.messages)


async def _encode_chat(chat: inference_pb2.ChatPrompt, tenant_id: str, model: ServedModel) -> Sequence[int]:
    messages = [(message.role, message.content) for message in chat.messages]
    token_ids = await model.encoder.encode_chat(tenant_id, messages)
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
