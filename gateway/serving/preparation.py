"""From a client's request to what a worker needs: validated, tokenised, tagged, with every default filled in."""

import secrets
from collections.abc import Sequence

from gateway.config import GatewayLimits
from gateway.dispatch.arrivals import Patience
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.generation import Generation, Segment
from gateway.errors import InvalidRequestError, NotFoundError, Violation
from gateway.identity.adapters import Adapter, AdapterDirectory
from gateway.identity.callers import Caller
from gateway.identity.extra_keys import ExtraKeys
from gateway.serving.ports import PublicPrefixes
from gateway.serving.prompts import encode_prompt, prompt_field
from gateway.serving.validation import check_generate, check_priority
from radixgate.v1 import inference_pb2


class Preparation:
    """Prepares Generate requests. What needs a worker waits a while for one."""

    def __init__(
        self,
        fleet: Fleet,
        adapters: AdapterDirectory,
        prefixes: PublicPrefixes,
        extra_keys: ExtraKeys,
        limits: GatewayLimits,
        patience: Patience,
    ) -> None:
        self._fleet = fleet
        self._adapters = adapters
        self._prefixes = prefixes
        self._extra_keys = extra_keys
        self._limits = limits
        self._patience = patience

    async def model(self, caller: Caller, name: str) -> ServedModel:
        """Return the model that the caller means. Raises NotFoundError, also for one that it may not use."""

        async def look() -> ServedModel:
            return self._model(caller, name)

        return await self._patience.until(look)

    def _model(self, caller: Caller, name: str) -> ServedModel:
        if name and not caller.may_use_model(name):
            raise NotFoundError("model", name)
        return self._fleet.model(name, caller.may_use_model)

    async def prepare(
        self, caller: Caller, request_id: str, request: inference_pb2.GenerateRequest
    ) -> tuple[ServedModel, Generation]:
        """Raises NotFoundError, UnavailableError, or InvalidRequestError with all violations at once."""
        return await self._patience.until(lambda: self._prepared(caller, request_id, request))

    async def _prepared(
        self, caller: Caller, request_id: str, request: inference_pb2.GenerateRequest
    ) -> tuple[ServedModel, Generation]:
        model = self._model(caller, request.model)
        adapter = await self._adapter(caller, model, request, request_id)
        violations = [
            *check_generate(request, self._limits, model.vocab_size),
            *check_priority(request, caller.terms.priority),
        ]
        token_ids: Sequence[int] = ()
        try:
            token_ids = await encode_prompt(request, caller.tenant_id, model, self._limits, self._room(model))
        except InvalidRequestError as error:
            violations.extend(error.violations)
        else:
            violations.extend(self._check_room(request, len(token_ids), model))
        if violations:
            raise InvalidRequestError(violations)
        terms = caller.terms
        generation = Generation(
            request_id=request_id,
            tenant=caller.tenant_id,
            adapter=request.adapter,
            adapter_revision=adapter.revision if adapter else "",
            prompt=await self._segments(caller, model, adapter, token_ids, request.scope),
            sampling=_filled_in(request.sampling, self._room(model) - len(token_ids)),
            priority=request.priority if request.HasField("priority") else terms.priority,
            weight=terms.weight,
            cache_floor_tokens=terms.cache_floor_tokens,
        )
        return model, generation

    async def _adapter(
        self, caller: Caller, model: ServedModel, request: inference_pb2.GenerateRequest, request_id: str
    ) -> Adapter | None:
        if not request.adapter:
            return None
        if not caller.may_use_adapter(request.adapter):
            raise NotFoundError("adapter", request.adapter)
        affinity = request.scope or request_id  # what belongs together stays with the same weights
        adapter = await self._adapters.find(caller.tenant_id, model.name, request.adapter, affinity)
        if adapter is None:
            raise NotFoundError("adapter", request.adapter)
        return adapter

    async def _segments(
        self, caller: Caller, model: ServedModel, adapter: Adapter | None, token_ids: Sequence[int], scope: str
    ) -> tuple[Segment, ...]:
        """Return the prompt, cut at the barrier behind a public prefix if it begins with one."""
        own = await self._extra_keys.of_tenant(caller.tenant, adapter, scope)
        prefix = self._prefixes.longest(model.name, adapter.name if adapter else "", token_ids)
        if prefix is None:
            return (Segment(own, token_ids),)
        public = await self._extra_keys.of_public_prefix(prefix.prefix_id, prefix.version, adapter)
        barrier = prefix.num_tokens
        return (Segment(public, token_ids[:barrier]), Segment(own, token_ids[barrier:]))

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
