"""What traces say of generations: counts, names and settings; neither prompts nor answers.

Names of OpenTelemetry's conventions for generative AI where those have one, else our own.
https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from collections.abc import Sequence

from gateway.dispatch.generation import Generation
from gateway.quota.accounts import Account
from radixgate.v1 import inference_pb2
from tracing.spans import Attribute, Attributes

_REASONS = {inference_pb2.FINISH_REASON_STOP: "stop", inference_pb2.FINISH_REASON_LENGTH: "length"}


def finish_word(reason: inference_pb2.FinishReason.ValueType) -> str:
    return _REASONS.get(reason, "unknown")


def asked(request: inference_pb2.GenerateRequest, model: str, generation: Generation) -> Attributes:
    """Return what a request is for."""
    sampling = generation.sampling
    return {
        "gen_ai.operation.name": "chat" if request.WhichOneof("prompt") == "chat" else "text_completion",
        "gen_ai.provider.name": "radixgate",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": sampling.n,
        "radixgate.request_id": generation.request_id,
        "radixgate.tenant": generation.tenant,
        "radixgate.adapter": generation.adapter,
    }


def used(account: Account, finish_reasons: Sequence[str]) -> Attributes:
    """Return what came of it: counts add up, over all that one call asks for."""
    told: dict[str, Attribute] = {
        "gen_ai.usage.output_tokens": account.completion_tokens,
        "gen_ai.response.finish_reasons": tuple(finish_reasons),
    }
    if account.admitted:
        told |= {
            "gen_ai.usage.input_tokens": account.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": account.cached_tokens,
            "radixgate.cached_tokens.device": account.cached_device_tokens,
            "radixgate.cached_tokens.host": account.cached_host_tokens,
            "radixgate.cached_tokens.storage": account.cached_storage_tokens,
            "radixgate.computed_prompt_tokens": account.prompt_tokens - account.cached_tokens,
        }
    return told
