"""What no step could ever compute, and is therefore refused when it is submitted."""

import math
from dataclasses import dataclass

from worker.batch import SamplingParams
from worker.engine.ports import Continued, Request
from worker.errors import Failure, FailureCode


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the engine must know of the model."""

    vocab_size: int  # token ids are 0..vocab_size-1
    context_length: int  # tokens, prompt and completion together
    eos_token_ids: tuple[int, ...]


def end_token_ids(request: Request, limits: ModelLimits) -> frozenset[int]:
    """Return the tokens that end a completion of `request`."""
    ends = frozenset(request.params.stop_token_ids)
    # A constraint says where a text may end, and the end is an end token.
    if not request.params.ignore_eos or request.constraint is not None:
        ends = ends.union(limits.eos_token_ids)
    return ends


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
    return _continued_refusal(request, limits)


def _continued_refusal(request: Request, limits: ModelLimits) -> Failure | None:
    """Return why what is to go on can't: it never can have come so far, or would have ended there."""
    n, seen = request.params.n, set[int]()
    ends = end_token_ids(request, limits)
    for place, each in enumerate(request.continued):
        field = f"continued[{place}]"
        if not 0 <= each.index < n:
            return _invalid(f"index {each.index} is none of the {n} completions, 0 to {n - 1}", f"{field}.index")
        if each.index in seen:
            return _invalid(f"completion {each.index} is named twice", f"{field}.index")
        seen.add(each.index)
        why = _tokens_refusal(each, request.params.max_new_tokens, limits.vocab_size, ends)
        if why is not None:
            return _invalid(why, f"{field}.token_ids")
    return None


def _tokens_refusal(each: Continued, max_new_tokens: int, vocab_size: int, ends: frozenset[int]) -> str | None:
    number = len(each.token_ids)
    if number == 0:
        return "a completion that goes on has at least 1 token"
    if number >= max_new_tokens:
        return f"{number} tokens and max_new_tokens {max_new_tokens}: there is nothing left to generate"
    if min(each.token_ids) < 0 or max(each.token_ids) >= vocab_size:
        return f"token ids must lie between 0 and {vocab_size - 1}"
    if not ends.isdisjoint(each.token_ids):
        place = next(place for place, token_id in enumerate(each.token_ids) if token_id in ends)
        return f"an end token stands at place {place} of {number}: the completion has ended"
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
