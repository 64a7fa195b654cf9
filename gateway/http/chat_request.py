"""The body of POST /v1/chat/completions, in our words."""

from typing import Any

from gateway.config import GatewayLimits
from gateway.http.asked import NAMES, Asked, read_common, read_model, read_only, read_stream, refuse, set_max_tokens
from gateway.http.errors import Json
from gateway.http.fields import Fields, Violations, kind_of
from radixgate.v1 import inference_pb2

_ROLES = {"developer": "system"}  # newer clients' word for it
_NO_TOOLS = "models are served without tools; a schema in `response_format` gives structured answers"
_ONE_VOICE = "templates here know roles only"


def read_chat(body: Json, limits: GatewayLimits) -> Asked:
    """Raises InvalidRequestError naming the faults."""
    violations = Violations()
    fields = Fields(body, violations)
    sampling = inference_pb2.SamplingParams()
    max_tokens = set_max_tokens(fields, sampling, "max_tokens", "max_completion_tokens")
    wants_logprobs = _read_logprobs(fields, sampling)
    stream, include_usage = read_stream(fields)
    common = read_common(fields, sampling)
    _read_chat_only(fields)
    asked = Asked(
        model=read_model(fields),
        common=common,
        prompts=(_chat(fields, limits),),
        names={**NAMES, "sampling.max_new_tokens": max_tokens, "sampling.logprobs": "top_logprobs"},
        stream=stream,
        include_usage=include_usage,
        wants_logprobs=wants_logprobs,
        wants_token_ids=fields.flag("return_token_ids") or False,
    )
    fields.refuse_rest()
    violations.raise_any()
    return asked


def _read_logprobs(fields: Fields, sampling: inference_pb2.SamplingParams) -> bool:
    wants, top = fields.flag("logprobs") or False, fields.integer("top_logprobs")
    if wants:
        sampling.logprobs = top or 0
    elif top:
        fields.refuse("top_logprobs", "is only for requests with `logprobs: true`")
    return wants


def _read_chat_only(fields: Fields) -> None:
    read_only(fields, "tools", ([],), f"is not supported: {_NO_TOOLS}")
    read_only(fields, "functions", ([],), f"is not supported: {_NO_TOOLS}")
    read_only(fields, "tool_choice", ("none", "auto"), f"is not supported: {_NO_TOOLS}")
    read_only(fields, "function_call", ("none", "auto"), f"is not supported: {_NO_TOOLS}")
    read_only(fields, "modalities", (["text"],))
    fields.flag("parallel_tool_calls")  # of no effect without tools
    refuse(fields, "audio", "models here read and write text")


def _chat(fields: Fields, limits: GatewayLimits) -> inference_pb2.ChatPrompt:
    chat = inference_pb2.ChatPrompt()
    messages = fields.items("messages")
    if messages is None and "messages" not in fields:
        fields.refuse("messages", "is required: a list of messages")
    elif messages is not None and len(messages) > limits.max_messages:
        fields.refuse("messages", f"has {len(messages)} messages; at most {limits.max_messages} are allowed")
    else:
        for i, message in enumerate(messages or ()):
            _add_message(chat, message, fields, f"messages[{i}]")
    return chat


def _add_message(chat: inference_pb2.ChatPrompt, message: Any, outer: Fields, path: str) -> None:
    if type(message) is not dict:
        outer.refuse(path, f"is {kind_of(message)}; must be an object")
        return
    fields = Fields(message, outer.violations, path)
    role = fields.text("role")
    if not role and "role" not in fields:
        fields.refuse("role", "is required")
    content = _content(fields)
    for name in ("tool_calls", "annotations"):  # as answers have them that clients send back
        read_only(fields, name, ([],), f"is not supported: {_NO_TOOLS}")
    refuse(fields, "name", _ONE_VOICE)
    fields.refuse_rest()
    chat.messages.add(role=_ROLES.get(role or "", role or ""), content=content)


def _content(fields: Fields) -> str:
    content = fields.value("content")
    if type(content) is str:
        return content
    if type(content) is list:
        return "".join(_part(part, fields, f"content[{i}]") for i, part in enumerate(content))
    if content is None:
        fields.refuse("content", "is required: a string, or a list of text parts")
    else:
        fields.refuse("content", f"is {kind_of(content)}; must be a string or a list of text parts")
    return ""


def _part(part: Any, outer: Fields, name: str) -> str:
    if type(part) is not dict:
        outer.refuse(name, f"is {kind_of(part)}; must be an object")
        return ""
    fields = Fields(part, outer.violations, outer.path_of(name))
    if fields.text("type") != "text":
        outer.refuse(f"{name}.type", "must be text: models here read nothing else")
        return ""
    text = fields.text("text")
    if text is None and "text" not in fields:
        fields.refuse("text", "is required")
    fields.refuse_rest()
    return text or ""
