"""What a request must fulfil by itself, before any prompt is looked at. Collects every violation."""

from collections.abc import Iterator, Sequence

import numpy as np

from gateway.config import GatewayLimits
from gateway.errors import Violation
from gateway.policy import MIN_PRIORITY
from radixgate.v1 import inference_pb2

# The field is a 32-bit float, whose nearest value to 0.01 lies a little below it.
_SMALLEST_PENALTY = float(np.float32(0.01))
_IDENTITY = "comes from the credential and must not be sent"


def check_generate(request: inference_pb2.GenerateRequest, limits: GatewayLimits, vocab_size: int) -> list[Violation]:
    """Return what is wrong with everything but the prompt."""
    return [
        *_check_identity(request),
        *_check_scope(request.scope, limits),
        *_check_request_id(request.request_id, limits),
        *_check_lengths(request.sampling, limits),
        *_check_probabilities(request.sampling),
        *_check_stops(request.sampling, limits, vocab_size),
        *_check_constraint(request.sampling, limits),
    ]


def check_priority(request: inference_pb2.GenerateRequest, highest: int) -> Iterator[Violation]:
    """Yield what is wrong with the priority, for a tenant whose requests may have `highest` at most."""
    if request.HasField("priority") and not MIN_PRIORITY <= request.priority <= highest:
        yield Violation("priority", f"is {request.priority}; must be {MIN_PRIORITY} to {highest}, the tenant's own")


def _check_identity(request: inference_pb2.GenerateRequest) -> Iterator[Violation]:
    if request.tenant:
        yield Violation("tenant", _IDENTITY)
    if request.extra_key:
        yield Violation("extra_key", _IDENTITY)


def _check_scope(scope: str, limits: GatewayLimits) -> Iterator[Violation]:
    num_bytes = len(scope.encode())
    if num_bytes > limits.max_scope_bytes:
        yield Violation("scope", f"has {num_bytes} bytes of UTF-8; at most {limits.max_scope_bytes} are allowed")


def _check_request_id(request_id: str, limits: GatewayLimits) -> Iterator[Violation]:
    if len(request_id) > limits.max_request_id_chars:
        most = limits.max_request_id_chars
        yield Violation("request_id", f"has {len(request_id)} characters; at most {most} are allowed")
    if not request_id.isprintable():
        yield Violation("request_id", "must have printable characters only")


def _check_lengths(sampling: inference_pb2.SamplingParams, limits: GatewayLimits) -> Iterator[Violation]:
    if sampling.HasField("max_new_tokens") and sampling.max_new_tokens < 1:
        yield Violation("sampling.max_new_tokens", f"is {sampling.max_new_tokens}; must be at least 1")
    if sampling.min_new_tokens < 0:
        yield Violation("sampling.min_new_tokens", f"is {sampling.min_new_tokens}; must be at least 0")
    elif 1 <= sampling.max_new_tokens < sampling.min_new_tokens:
        yield Violation(
            "sampling.min_new_tokens",
            f"is {sampling.min_new_tokens}; must be at most max_new_tokens, {sampling.max_new_tokens}",
        )
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if not 0 <= value <= limits.max_logprobs:
            yield Violation(f"sampling.{name}", f"is {value}; must be 0 to {limits.max_logprobs}")
    if sampling.HasField("n") and not 1 <= sampling.n <= limits.max_completions:
        yield Violation("sampling.n", f"is {sampling.n}; must be 1 to {limits.max_completions}")


def _check_probabilities(sampling: inference_pb2.SamplingParams) -> Iterator[Violation]:
    if sampling.top_k < 0:
        yield Violation("sampling.top_k", f"is {sampling.top_k}; must be at least 0")
    # "Not in range" and not "out of range": NaN is neither.
    if not 0 <= sampling.temperature <= 100:
        yield Violation("sampling.temperature", f"is {sampling.temperature:g}; must be 0 to 100")
    if sampling.HasField("top_p") and not 0 < sampling.top_p <= 1:
        yield Violation("sampling.top_p", f"is {sampling.top_p:g}; must be above 0 and at most 1")
    if not 0 <= sampling.min_p <= 1:
        yield Violation("sampling.min_p", f"is {sampling.min_p:g}; must be 0 to 1")
    penalty = sampling.repetition_penalty
    if sampling.HasField("repetition_penalty") and not _SMALLEST_PENALTY <= penalty <= 100:
        yield Violation("sampling.repetition_penalty", f"is {penalty:g}; must be 0.01 to 100")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if not -2 <= value <= 2:
            yield Violation(f"sampling.{name}", f"is {value:g}; must be -2 to 2")


def _check_stops(sampling: inference_pb2.SamplingParams, limits: GatewayLimits, vocab_size: int) -> Iterator[Violation]:
    if len(sampling.stop) > limits.max_stop_strings:
        yield Violation(
            "sampling.stop", f"has {len(sampling.stop)} strings; at most {limits.max_stop_strings} are allowed"
        )
    for i, stop in enumerate(sampling.stop[: limits.max_stop_strings]):
        if not 1 <= len(stop) <= limits.max_stop_string_chars:
            most = limits.max_stop_string_chars
            yield Violation(f"sampling.stop[{i}]", f"has {len(stop)} characters; must have 1 to {most}")
    if len(sampling.stop_token_ids) > limits.max_stop_token_ids:
        most = limits.max_stop_token_ids
        yield Violation(
            "sampling.stop_token_ids", f"has {len(sampling.stop_token_ids)} ids; at most {most} are allowed"
        )
    for i, token_id in enumerate(sampling.stop_token_ids[: limits.max_stop_token_ids]):
        if not 0 <= token_id < vocab_size:
            yield Violation(f"sampling.stop_token_ids[{i}]", f"is {token_id}; must be 0 to {vocab_size - 1}")


def _check_constraint(sampling: inference_pb2.SamplingParams, limits: GatewayLimits) -> Iterator[Violation]:
    """Sizes only: whether anything can be held to it is for the worker to say, which knows the tokens."""
    kind = sampling.WhichOneof("constraint")
    if kind is None:
        return
    if kind == "choice":
        yield from _check_choice(sampling.choice.texts, limits)
    num_bytes = _constraint_bytes(sampling)
    if num_bytes > limits.max_constraint_bytes:
        yield Violation(f"sampling.{kind}", f"has {num_bytes} bytes; at most {limits.max_constraint_bytes} are allowed")
    elif num_bytes == 0 and kind != "choice":
        yield Violation(f"sampling.{kind}", "is empty; must have at least 1 character")


def _constraint_bytes(sampling: inference_pb2.SamplingParams) -> int:
    texts = (sampling.json_schema, sampling.regex, *sampling.choice.texts)  # one kind is set, the others are empty
    return sum(len(text.encode()) for text in texts)


def _check_choice(texts: Sequence[str], limits: GatewayLimits) -> Iterator[Violation]:
    if not 1 <= len(texts) <= limits.max_choices:
        yield Violation("sampling.choice.texts", f"has {len(texts)} texts; must have 1 to {limits.max_choices}")
    for i, text in enumerate(texts[: limits.max_choices]):
        if not text:
            yield Violation(f"sampling.choice.texts[{i}]", "is empty; must have at least 1 character")
