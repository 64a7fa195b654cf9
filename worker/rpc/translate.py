"""Messages to engine values and back. Refuses a submit that the engine must never see.

Deciding what a request may do is the gateway's part, and whether it can be computed the engine's; here stands what
would break the cache's promises (every segment must carry its extra key) and which adapters this worker has.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hicache.errors import InvalidKeyError
from hicache.keys import EXTRA_KEY_BYTES, Namespace, PrefixKey, Segment
from radixgate.v1 import inference_pb2, worker_pb2
from worker.batch import SamplingParams, TokenLogprobs
from worker.engine.ports import Admission, Continued, FinishReason, LinkLoad, Load, Request, SequenceId, SequenceOutput
from worker.errors import Failure, FailureCode
from worker.grammar.constraints import Choice, JsonSchema, Regex, TextConstraint

_NOTHING = LinkLoad()
_MIN_WEIGHT, _MAX_WEIGHT = 1e-3, 1e3  # between tenants as far apart as these, services can still be compared

_ERROR_CODES = {
    FailureCode.INVALID_ARGUMENT: worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT,
    FailureCode.NOT_FOUND: worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND,
    FailureCode.DEADLINE_EXCEEDED: worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED,
    FailureCode.CANCELLED: worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED,
    FailureCode.OVERLOADED: worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED,
    FailureCode.SHUTTING_DOWN: worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN,
    FailureCode.INTERNAL: worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL,
}
_FINISH_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class RefusedSubmit(Exception):
    """A submit that must not reach the engine; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class AdapterLookup(Protocol):
    """The adapters that this worker has."""

    def has(self, name: str, revision: str, tenant: str) -> bool: ...


def request_from(submit: worker_pb2.Submit, sequence_id: SequenceId, now: float, adapters: AdapterLookup) -> Request:
    """Return the engine's request for `submit`, received at `now` on the engine's clock (seconds).

    Raises RefusedSubmit for a segment without its extra key and for an adapter that this worker does not have.
    """
    _check_adapter(submit, adapters)
    return Request(
        sequence_id=sequence_id,
        request_id=submit.request_id,
        key=_prefix_key(submit.prompt, submit.adapter_revision),
        params=_sampling_params(submit.sampling),
        tenant=submit.tenant,
        adapter=submit.adapter,
        deadline=now + submit.timeout_ms / 1000 if submit.timeout_ms > 0 else None,
        priority=submit.priority,
        weight=_weight(submit.weight),
        cache_floor_tokens=_cache_floor(submit.cache_floor_tokens),
        continued=tuple([Continued(each.index, tuple(each.token_ids)) for each in submit.continued]),
    )


def num_completions(submit: worker_pb2.Submit) -> int:
    """Return how many completions are to come of `submit`, if it is served."""
    return len(submit.continued) or max(1, submit.sampling.n)


def constraint_of(sampling: inference_pb2.SamplingParams) -> TextConstraint | None:
    """Return what the completions must read like, if the request says so."""
    match sampling.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(sampling.json_schema)
        case "regex":
            return Regex(sampling.regex)
        case "choice":
            return Choice(tuple(sampling.choice.texts))
        case _:
            return None


def output_message(output: SequenceOutput) -> worker_pb2.SequenceOutput:
    """Return one completion's news as a message; `sequence_id` is the gateway's own."""
    message = worker_pb2.SequenceOutput(
        sequence_id=output.sequence_id[1],
        token_ids=output.token_ids,
        text=output.text,
        logprobs=[_logprobs_message(entry) for entry in output.logprobs],
        index=output.index,
        prompt_logprobs=[_logprobs_message(entry) for entry in output.prompt_logprobs],
    )
    if output.admission is not None:
        message.admission.CopyFrom(_admission_message(output.admission))
    if isinstance(output.finish, FinishReason):
        message.finish_reason = _FINISH_REASONS[output.finish]
    elif output.finish is not None:
        message.error.CopyFrom(error_message(output.finish))
    return message


def error_message(failure: Failure) -> worker_pb2.SequenceError:
    return worker_pb2.SequenceError(code=_ERROR_CODES[failure.code], message=failure.message, field=failure.field)


def load_message(load: Load, link_id: int, *, stalled_s: float, draining: bool) -> worker_pb2.WorkerLoad:
    """Return what one link is told of a load: beside what is true for all, what is its own."""
    own = load.links.get(link_id, _NOTHING)
    return worker_pb2.WorkerLoad(
        running_sequences=load.running,
        waiting_sequences=load.waiting,
        free_slots=load.free_slots,
        evictable_slots=load.evictable_slots,
        num_slots=load.num_slots,
        pending_tokens=load.pending_tokens,
        own_pending_tokens=own.pending_tokens,
        own_sequences=own.sequences,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        load_tokens_per_s=load.load_tokens_per_s,
        fetch_tokens_per_s=load.fetch_tokens_per_s,
        step_s=load.step_s,
        stalled_s=stalled_s,
        draining=draining,
    )


def _weight(weight: float) -> float:
    """Return a tenant's share against others; unset it is 1. One beyond all measure would spoil the turns of all."""
    if weight == 0:
        return 1.0
    if not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
        bounds = f"{_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}"
        raise RefusedSubmit(_invalid(f"weight must be {bounds}, or 0 for 1, not {weight:g}", "weight"))
    return weight


def _cache_floor(num_tokens: int) -> int:
    if num_tokens < 0:
        raise RefusedSubmit(_invalid(f"cache_floor_tokens must be at least 0, not {num_tokens}", "cache_floor_tokens"))
    return num_tokens


def _check_adapter(submit: worker_pb2.Submit, adapters: AdapterLookup) -> None:
    """Half an adapter would be computed by other weights than its KV is filed under: refuse it."""
    if bool(submit.adapter) != bool(submit.adapter_revision):
        missing = "adapter_revision" if submit.adapter else "adapter"
        raise RefusedSubmit(_invalid("adapter and adapter_revision are required together", missing))
    if submit.adapter and not adapters.has(submit.adapter, submit.adapter_revision, submit.tenant):
        # The same for one that is another tenant's.
        raise RefusedSubmit(Failure(FailureCode.NOT_FOUND, f"adapter {submit.adapter!r} is not loaded here", "adapter"))


def _prefix_key(segments: Sequence[worker_pb2.PromptSegment], adapter_revision: str) -> PrefixKey:
    if not segments:
        raise RefusedSubmit(_invalid("the prompt has no segment", "prompt"))
    parts = tuple(_segment(segment, index, adapter_revision) for index, segment in enumerate(segments))
    try:
        return PrefixKey(parts)
    except InvalidKeyError as error:
        raise RefusedSubmit(_invalid(str(error), "prompt")) from error


def _segment(segment: worker_pb2.PromptSegment, index: int, adapter_revision: str) -> Segment:
    if len(segment.extra_key) != EXTRA_KEY_BYTES:
        raise RefusedSubmit(
            _invalid(
                f"an extra key of {EXTRA_KEY_BYTES} bytes is required, got {len(segment.extra_key)}",
                f"prompt[{index}].extra_key",
            )
        )
    # Whatever the extra key says: KV is filed under the weights that compute it.
    return Segment(Namespace(segment.extra_key, adapter_revision), np.array(segment.token_ids, dtype=np.int32))


def _sampling_params(message: inference_pb2.SamplingParams) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=message.max_new_tokens,
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        seed=message.seed,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        min_new_tokens=message.min_new_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        n=message.n if message.HasField("n") else 1,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def _logprobs_message(logprobs: TokenLogprobs) -> inference_pb2.TokenLogprobs:
    return inference_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top=[inference_pb2.TopLogprob(token_id=token_id, logprob=value) for token_id, value in logprobs.top],
    )


def _admission_message(admission: Admission) -> worker_pb2.Admission:
    hit = admission.hit
    return worker_pb2.Admission(
        prompt_tokens=admission.prompt_tokens,
        cached=inference_pb2.CachedTokens(device=hit.device, host=hit.host, storage=hit.storage),
    )


def _invalid(message: str, field: str) -> Failure:
    return Failure(FailureCode.INVALID_ARGUMENT, message, field)
