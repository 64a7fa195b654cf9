"""What a client asks for over HTTP: what both kinds of completions have in common, from OpenAI's words to ours."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequestError, Violation
from gateway.http.fields import Fields
from gateway.identity.claims import claims_identity
from radixgate.v1 import inference_pb2

_UINT64 = 2**64
_SEEDS = (-(2**63), _UINT64 - 1)
_ANY_OBJECT = '{"type":"object"}'
# Fields that change nothing here, with any value.
_WITHOUT_EFFECT = ("user", "safety_identifier")
# Fields that are fine as long as they ask for what happens anyway.
_ONLY: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "logit_bias": ({},),
}
_REASONS = {
    "logit_bias": "is not supported: workers have no bias by token; `choice`, `regex` or a schema may do instead",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request, read. Neither the model nor the prompts have been looked at."""

    model: str  # as the client names it: a model, or a model and an adapter, MODEL:ADAPTER
    common: inference_pb2.GenerateRequest  # without model, adapter and prompt
    prompts: tuple["Prompt", ...]
    names: Mapping[str, str]  # of our fields in the client's words, see `in_their_words`
    stream: bool = False
    include_usage: bool = False
    wants_logprobs: bool = False
    wants_token_ids: bool = False

    @property
    def n(self) -> int:
        """How many completions there are of each prompt."""
        return self.common.sampling.n or 1


Prompt = str | list[int] | inference_pb2.ChatPrompt


def read_common(fields: Fields, sampling: inference_pb2.SamplingParams) -> inference_pb2.GenerateRequest:
    """Read what is the same for chats and texts; lengths, log probabilities and prompts are not."""
    _read_sampling(fields, sampling)
    _read_constraint(fields, sampling)
    _read_without_effect(fields)
    return inference_pb2.GenerateRequest(
        sampling=sampling, scope=fields.text("scope") or "", priority=fields.integer("priority")
    )


def read_model(fields: Fields) -> str:
    model = fields.text("model")
    if not model and (model == "" or "model" not in fields):
        fields.refuse("model", "is required: one of GET /v1/models")
    return model or ""


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Return whether to stream, and whether with the usage at the end."""
    stream = fields.flag("stream") or False
    options = fields.inner("stream_options")
    if options is None:
        return stream, False
    if not stream:
        fields.refuse("stream_options", "is only for requests with `stream: true`")
    include_usage = options.flag("include_usage") or False
    read_only(options, "include_obfuscation", (False,))
    options.refuse_rest()
    return stream, include_usage


def set_max_tokens(fields: Fields, sampling: inference_pb2.SamplingParams, *names: str) -> str:
    """Read the most tokens from any of `names`, which mean the same, and return the one that was used."""
    used = [name for name in names if name in fields]
    values = {fields.integer(name) for name in used} - {None}
    if len(values) > 1:
        fields.refuse(used[0], f"differs from {used[1]}; send one of them")
    for value in values:
        sampling.max_new_tokens = value  # type: ignore[assignment]
    return used[0] if used else names[0]


def in_their_words(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """Return the error with our fields named as the client has named them."""
    violations = [Violation(_renamed(v.field, names), _reworded(v.description, names)) for v in error.violations]
    return InvalidRequestError(violations, reason=error.reason)


NAMES = {
    "sampling.min_new_tokens": "min_tokens",
    "sampling.choice.texts": "choice",
    "sampling.json_schema": "response_format",
    "chat.messages": "messages",
    "chat": "messages",
    "tokens.token_ids": "prompt",
    "text": "prompt",
    "request_id": "x-request-id",
}


def _renamed(field: str, names: Mapping[str, str]) -> str:
    for ours in sorted(names, key=len, reverse=True):
        if field == ours or field.startswith((f"{ours}.", f"{ours}[")):
            return names[ours] + field[len(ours) :]
    return field.removeprefix("sampling.")


def _reworded(description: str, names: Mapping[str, str]) -> str:
    return description.replace("max_new_tokens", names.get("sampling.max_new_tokens", "max_tokens"))


# ------------------------------------------------------------------------------------------------------------ sampling


def _read_sampling(fields: Fields, sampling: inference_pb2.SamplingParams) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        if (number := fields.number(name)) is not None:
            setattr(sampling, name, number)
    for name, ours in (("top_k", "top_k"), ("n", "n"), ("min_tokens", "min_new_tokens")):
        if (integer := fields.integer(name)) is not None:
            setattr(sampling, ours, integer)
    if (seed := fields.integer("seed", _SEEDS)) is not None:
        sampling.seed = seed % _UINT64  # OpenAI's is signed, ours is not: the same 64 bits
    if (ignore_eos := fields.flag("ignore_eos")) is not None:
        sampling.ignore_eos = ignore_eos
    sampling.stop_token_ids.extend(fields.integers("stop_token_ids") or ())
    sampling.stop.extend(_one_or_more(fields, "stop"))


def _one_or_more(fields: Fields, name: str) -> list[str]:
    if type(fields.value(name)) is str:
        return [fields.text(name) or ""]
    return fields.texts(name) or []


def _read_constraint(fields: Fields, sampling: inference_pb2.SamplingParams) -> None:
    response_format = fields.inner("response_format")
    schema = _schema(response_format) if response_format is not None else None
    regex, choice = fields.text("regex"), fields.texts("choice")
    given = [name for name, value in (("response_format", schema), ("regex", regex), ("choice", choice)) if value]
    if len(given) > 1:
        fields.refuse(given[1], f"can't be combined with {given[0]}")
    elif schema is not None:
        sampling.json_schema = schema
    elif regex is not None:
        sampling.regex = regex
    elif choice is not None:
        sampling.choice.texts.extend(choice)
        sampling.choice.SetInParent()


def _schema(fields: Fields) -> str | None:
    kind = fields.text("type")
    inner = fields.inner("json_schema")
    schema = None
    if kind == "json_object":
        schema = _ANY_OBJECT
    elif kind == "json_schema" and inner is not None:
        inner.ignore("name", "description", "strict")  # a schema is always held to
        schema = _dumped(inner)
        inner.refuse_rest()
    elif kind == "json_schema":
        fields.refuse("json_schema", "is required with this type")
    elif kind != "text":
        fields.refuse("type", "must be text, json_object or json_schema")
    fields.refuse_rest()
    return schema


def _dumped(fields: Fields) -> str | None:
    schema = fields.value("schema")
    if type(schema) not in {dict, bool}:
        fields.refuse("schema", "is required: a JSON schema")
        return None
    try:
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        fields.refuse("schema", "nests too deeply")
        return None


def _read_without_effect(fields: Fields) -> None:
    fields.ignore(*_WITHOUT_EFFECT)
    for name, values in _ONLY.items():
        read_only(fields, name, values, _REASONS.get(name))
    refuse(fields, "prompt_cache_key", "the cache finds prefixes by itself; `scope` narrows who shares them")
    metadata = fields.inner("metadata")
    for name in metadata.names() if metadata is not None else ():
        if claims_identity(name):
            fields.violations.claims_identity = True
            fields.refuse(f"metadata.{name[:64]}", "identity comes from the credential; remove this entry")


def read_only(fields: Fields, name: str, values: tuple[Any, ...], otherwise: str | None = None) -> None:
    """Refuse a field that asks for anything else than what happens anyway."""
    value = fields.value(name)
    if value is not None and not any(type(value) is type(other) and value == other for other in values):
        allowed = " or ".join(json.dumps(other) for other in values)
        fields.refuse(name, otherwise or f"must be {allowed}: nothing else is supported here")


def refuse(fields: Fields, name: str, why: str) -> None:
    """Refuse a field that nobody here can do anything for."""
    if fields.value(name) is not None:
        fields.refuse(name, f"is not supported: {why}")
