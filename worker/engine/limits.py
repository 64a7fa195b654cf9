"""What no step could ever compute, and is therefore refused when it is submitted."""

import math
from dataclasses import dataclass

from worker.batch import SamplingParams
from worker.engine.ports import Request
from worker.errors import Failure, FailureCode


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the engine must know of the model."""

    vocab_size: int  # token ids are 0..vocab_size-1
    context_length: int  # tokens, prompt and completion together
    eos_token_ids: tuple[int, ...]


def refusal(request: Request, limits: ModelLimits, max_sequence_tokens: int) -> Failure | None:
    """Return why `request` can't be served here, or None. The fields are named as in the API's Submit message.

    A token id outside of the vocabulary would end the whole step that computes it, neighbours included.
    """
    params = request.params
    prompt = request.key.token_ids
    if len(prompt) == 0:
        return _invalid("the prompt has no tokens; at least 1 is needed", "prompt")
    if prompt.min() < 0 or prompt.max() >= limits.vocab_size:
        return _invalid(f"prompt token ids must lie between 0 and {limits.vocab_size - 1}", "prompt")
    if params.max_new_tokens < 1:
        return _invalid(f"max_new_tokens must be at least 1, not {params.max_new_tokens}", "sampling.max_new_tokens")
    failure = _sampling_refusal(params)
    if failure is not None:
        return failure
    if any(not 0 <= token_id < limits.vocab_size for token_id in params.stop_token_ids):
        return _invalid(f"stop token ids must lie between 0 and {limits.vocab_size - 1}", "sampling.stop_token_ids")
    limit, what = min(
        (limits.context_length, "the model's context"), (max_sequence_tokens, "what this worker's cache can hold")
    )
    if len(prompt) + params.max_new_tokens > limit:
        return _invalid(
            f"{len(prompt)} prompt tokens and max_new_tokens {params.max_new_tokens} exceed {what}: {limit} tokens",
            "prompt" if len(prompt) >= limit else "sampling.max_new_tokens",
        )
    return None


def _sampling_refusal(params: SamplingParams) -> Failure | None:
    """Return which parameter sampling is not defined for. It would fail a step, and all that share it, not one request.

    Gateways check the same against their own, narrower bounds.
    """
    for name, value, holds, bounds in (
        ("temperature", params.temperature, params.temperature >= 0, "at least 0"),
        ("top_k", params.top_k, params.top_k >= 0, "at least 0"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("min_p", params.min_p, 0 <= params.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", params.repetition_penalty, params.repetition_penalty > 0, "above 0"),
        ("presence_penalty", params.presence_penalty, True, "a number"),
        ("frequency_penalty", params.frequency_penalty, True, "a number"),
        ("min_new_tokens", params.min_new_tokens, params.min_new_tokens >= 0, "at least 0"),
        ("logprobs", params.logprobs or 0, (params.logprobs or 0) >= 0, "at least 0"),
        ("prompt_logprobs", params.prompt_logprobs or 0, (params.prompt_logprobs or 0) >= 0, "at least 0"),
        ("n", params.n, params.n >= 1, "at least 1"),
        ("seed", params.seed, 0 <= params.seed < 1 << 64, "between 0 and 2^64 - 1"),
    ):
        if not holds or not math.isfinite(value):
            return _invalid(f"{name} must be {bounds} and finite, not {value}", f"sampling.{name}")
    if "" in params.stop:
        return _invalid("a stop string must have at least one character", "sampling.stop")
    return None


def _invalid(message: str, field: str) -> Failure:
    return Failure(FailureCode.INVALID_ARGUMENT, message, field)
