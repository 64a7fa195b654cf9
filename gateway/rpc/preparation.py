"""From a client's request to what a worker needs: validated, tokenised, tagged, with every default filled in."""

import secrets
from collections.abc import Sequence

from gateway.config import GatewayLimits
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.fleet import Fleet, Generation
from gateway.errors import InvalidRequestError, NotFoundError, Violation
from gateway.identity.adapters import AdapterDirectory
from gateway.identity.extra_keys import ExtraKeys
from gateway.rpc.prompts import encode_prompt, prompt_field
from gateway.rpc.validation import check_generate
from radixgate.v1 import inference_pb2


class Preparation:
    """Prepares Generate requests."""

    def __init__(self, fleet: Fleet, adapters: AdapterDirectory, extra_keys: ExtraKeys, limits: GatewayLimits) -> None:
        self._fleet = fleet
        self._adapters = adapters
        self._extra_keys = extra_keys
        self._limits = limits

    async def prepare(
        self, tenant_id: str, request_id: str, request: inference_pb2.GenerateRequest
    ) -> tuple[ServedModel, Generation]:
        """Raises NotFoundError, UnavailableError, or InvalidRequestError with all violations at once."""
        model = self._fleet.model(request.model)
        adapter = None
        if request.adapter:
            adapter = await self._adapters.find(tenant_id, model.name, request.adapter)
            if adapter is None:
                raise NotFoundError("adapter", request.adapter)
        violations = check_generate(request, self._limits, model.vocab_size)
        token_ids: Sequence[int] = ()
        try:
            token_ids = await encode_prompt(request, tenant_id, model, self._limits, self._room(model))
        except InvalidRequestError as error:
            violations.extend(error.violations)
        else:
            violations.extend(self._check_room(request, len(token_ids), model))
        if violations:
            raise InvalidRequestError(violations)
        generation = Generation(
            request_id=request_id,
            tenant=tenant_id,
            adapter=request.adapter,
            adapter_revision=adapter.revision if adapter else "",
            extra_key=await self._extra_keys.digest(tenant_id, adapter, request.scope),
            token_ids=token_ids,
            sampling=_filled_in(request.sampling, self._room(model) - len(token_ids)),
        )
        return model, generation

    def _room(self, model: ServedModel) -> int:
        """The most tokens that prompt and completion can have together."""
        return min(model.context_length, self._fleet.max_sequence_tokens(model))

    def _check_room(
        self, request: inference_pb2.GenerateRequest, prompt_tokens: int, model: ServedModel
    ) -> list[Violation]:
        room = self._room(model)
        limit = f"the model's context of {room} tokens"
        if room < model.context_length:
            limit = f"the {room} tokens that a worker's pool can hold for one request"
        if prompt_tokens >= room:
            return [Violation(prompt_field(request), f"has {prompt_tokens} tokens and leaves no room in {limit}")]
        wanted = max(request.sampling.max_new_tokens, request.sampling.min_new_tokens)
        if prompt_tokens + wanted > room:
            field = "max_new_tokens" if wanted == request.sampling.max_new_tokens else "min_new_tokens"
            total = prompt_tokens + wanted
            return [
                Violation(
                    f"sampling.{field}", f"{wanted} after a prompt of {prompt_tokens} makes {total}, over {limit}"
                )
            ]
        return []


def _filled_in(sampling: inference_pb2.SamplingParams, max_new_tokens: int) -> inference_pb2.SamplingParams:
    """Return a copy in which every field is set."""
    full = inference_pb2.SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        seed=secrets.randbits(64),
        ignore_eos=False,
        min_new_tokens=0,
        n=1,
    )
    # logprobs, prompt_logprobs and constraints have no default that could be filled in: unset means none.
    full.MergeFrom(sampling)
    return full
