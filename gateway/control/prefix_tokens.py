"""The tokens of a public prefix: those that stay whatever follows it."""

import string
from collections.abc import Sequence
from typing import Final

from gateway.config import GatewayLimits
from gateway.dispatch.catalogue import ServedModel
from gateway.errors import InvalidRequestError, Violation
from gateway.serving.prompts import encode_prompt
from radixgate.v1 import admin_pb2, inference_pb2

# What may follow, one of each kind that tokenizers join to what stands before it. Should something else change the
# last tokens after all, prompts that go on so do not begin with the prefix: they find less, and nothing wrong.
_CONTINUATIONS: Final = (
    *string.ascii_lowercase, "A", "0", "7", ".", ",", "'s", '"', "-", ":", "!", "?", ")", "/", "_", "=",
    " a", "  ", "\n", "\n\n", "\t", "\r\n", "é", "\u0301", "ß", "я", "你", "の", "🙂",
)  # fmt: skip
# Templates set what a message begins with apart from what stands before it: fewer are enough.
_CONTENTS: Final = ("a", "The", "0", ".", "\n", " b", "你", "🙂")


async def prefix_tokens(
    request: admin_pb2.CreatePublicPrefixRequest, model: ServedModel, limits: GatewayLimits
) -> Sequence[int]:
    """Return at least one token, and one less than the model's context at most. Raises InvalidRequestError."""
    kind = request.WhichOneof("prefix")
    match kind:
        case "text":
            token_ids = await _text_tokens(request.text, model, limits)
        case "chat":
            token_ids = await _chat_tokens(request.chat, model, limits)
        case "tokens":
            counted = inference_pb2.CountTokensRequest(tokens=request.tokens)
            token_ids = await encode_prompt(counted, "", model, limits, model.context_length)
        case _:
            raise _invalid("prefix", "is required: one of text, chat, tokens")
    if not token_ids:
        raise _invalid(kind, "has no token that stays the same whatever follows")
    most = model.context_length - 1
    if len(token_ids) > most:
        raise _invalid(kind, f"has {len(token_ids)} tokens; with a context of {most + 1} at most {most} are possible")
    return token_ids


async def _text_tokens(text: str, model: ServedModel, limits: GatewayLimits) -> Sequence[int]:
    if not text:
        raise _invalid("text", "is empty; a prefix needs at least one token")
    prompts = [inference_pb2.CountTokensRequest(text=text + following) for following in _CONTINUATIONS]
    return await _common_tokens(prompts, model, limits)


async def _chat_tokens(chat: inference_pb2.ChatPrompt, model: ServedModel, limits: GatewayLimits) -> Sequence[int]:
    if not chat.messages:
        raise _invalid("chat", "is empty; a chat needs at least one message")
    try:
        return await _common_tokens(_continued(chat, "user"), model, limits)
    except InvalidRequestError as refused:
        # Some templates want the roles to alternate: behind a user's message an answer is what can follow.
        if chat.messages[-1].role != "user":
            raise _below_chat(refused) from None
        try:
            return await _common_tokens(_continued(chat, "assistant"), model, limits)
        except InvalidRequestError:
            raise _below_chat(refused) from None


def _continued(chat: inference_pb2.ChatPrompt, role: str) -> list[inference_pb2.CountTokensRequest]:
    def followed_by(content: str) -> inference_pb2.ChatPrompt:
        message = inference_pb2.ChatMessage(role=role, content=content)
        return inference_pb2.ChatPrompt(messages=[*chat.messages, message])

    return [inference_pb2.CountTokensRequest(chat=followed_by(content)) for content in _CONTENTS]


async def _common_tokens(
    prompts: Sequence[inference_pb2.CountTokensRequest], model: ServedModel, limits: GatewayLimits
) -> Sequence[int]:
    common: Sequence[int] | None = None
    for prompt in prompts:
        token_ids = await encode_prompt(prompt, "", model, limits, model.context_length + 1)
        common = token_ids if common is None else common[: _num_common(common, token_ids)]
    return common or []


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _below_chat(refused: InvalidRequestError) -> InvalidRequestError:
    violations = [
        each if each.field.startswith("chat") else Violation("chat", each.description) for each in refused.violations
    ]
    return InvalidRequestError(violations, reason=refused.reason)


def _invalid(field: str, description: str) -> InvalidRequestError:
    return InvalidRequestError([Violation(field, description)])
