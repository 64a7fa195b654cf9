"""The body of POST /v1/completions, in our words."""

from typing import Any

from gateway.config import GatewayLimits
from gateway.http.asked import (
    NAMES,
    Asked,
    Prompt,
    read_common,
    read_model,
    read_only,
    read_stream,
    refuse,
    set_max_tokens,
)
from gateway.http.errors import Json
from gateway.http.fields import Fields, Violations, kind_of, not_integers
from radixgate.v1 import inference_pb2

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of this endpoint


def read_completion(body: Json, limits: GatewayLimits) -> Asked:
    """Raises InvalidRequestError naming the faults."""
    violations = Violations()
    fields = Fields(body, violations)
    sampling = inference_pb2.SamplingParams(max_new_tokens=DEFAULT_MAX_TOKENS)
    set_max_tokens(fields, sampling, "max_tokens")
    logprobs = fields.integer("logprobs")
    if logprobs is not None:
        sampling.logprobs = logprobs
    stream, include_usage = read_stream(fields)
    common = read_common(fields, sampling)
    _read_completion_only(fields, sampling)
    asked = Asked(
        model=read_model(fields),
        common=common,
        prompts=_prompts(fields, limits, sampling.n or 1),
        names={**NAMES, "sampling.max_new_tokens": "max_tokens", "sampling.logprobs": "logprobs"},
        stream=stream,
        include_usage=include_usage,
        wants_logprobs=logprobs is not None,
        wants_token_ids=fields.flag("return_token_ids") or False,
    )
    fields.refuse_rest()
    violations.raise_any()
    return asked


def _read_completion_only(fields: Fields, sampling: inference_pb2.SamplingParams) -> None:
    read_only(fields, "echo", (False,), "is not supported: completions are sent without their prompt")
    read_only(fields, "suffix", ("",), "is not supported: models here write what follows, not what lies between")
    best_of = fields.integer("best_of")
    if best_of is not None and best_of != (sampling.n or 1):
        fields.refuse("best_of", "is not supported beyond n: all completions are sent")
    refuse(fields, "messages", "this endpoint takes a `prompt`; chats go to /v1/chat/completions")


def _prompts(fields: Fields, limits: GatewayLimits, n: int) -> tuple[Prompt, ...]:
    prompt = fields.value("prompt")
    if prompt is None:
        fields.refuse("prompt", "is required")
        return ()
    if type(prompt) is str:
        return (prompt,)
    if type(prompt) is not list:
        fields.refuse("prompt", f"is {kind_of(prompt)}; must be a string, token ids, or a list of either")
        return ()
    if not prompt or type(prompt[0]) is int:
        return _of_token_ids(fields, prompt, "prompt")
    if len(prompt) * max(n, 1) > limits.max_completions:
        most = limits.max_completions
        fields.refuse("prompt", f"has {len(prompt)} prompts with {n} completions each; at most {most} are allowed")
        return ()
    return tuple(found for i, each in enumerate(prompt) for found in _of_one(fields, each, f"prompt[{i}]"))


def _of_one(fields: Fields, prompt: Any, name: str) -> tuple[Prompt, ...]:
    if type(prompt) is str:
        return (prompt,)
    if type(prompt) is list:
        return _of_token_ids(fields, prompt, name)
    fields.refuse(name, f"is {kind_of(prompt)}; must be a string or token ids")
    return ()


def _of_token_ids(fields: Fields, token_ids: list[Any], name: str) -> tuple[Prompt, ...]:
    if fault := not_integers(token_ids):
        fields.refuse(f"{name}[{fault[0]}]", fault[1])
        return ()
    return (token_ids,)
