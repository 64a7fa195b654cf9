"""A request as a worker needs it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hicache.keys import Namespace, PrefixKey
from hicache.keys import Segment as Named
from radixgate.v1 import inference_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt tokens in one cache namespace."""

    extra_key: bytes
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """A request as a worker needs it: authenticated, tagged, tokenised, validated."""

    request_id: str
    tenant: str
    adapter: str
    adapter_revision: str
    prompt: tuple[Segment, ...]  # a public prefix, if there is one, and what is the tenant's own
    sampling: inference_pb2.SamplingParams  # every default filled in
    priority: int = 0
    weight: float = 1.0
    cache_floor_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.prompt)

    @property
    def public_tokens(self) -> int:
        """Prompt tokens of a public prefix."""
        return sum(len(segment.token_ids) for segment in self.prompt[:-1])

    @property
    def extra_key(self) -> bytes:
        """The tenant's own."""
        return self.prompt[-1].extra_key

    def key(self, begun: Sequence[int] = ()) -> PrefixKey:
        """Return what names the KV of the prompt, and of what was generated after it, at any worker."""
        revision, own = self.adapter_revision, self.prompt[-1]
        public = [Named(Namespace(part.extra_key, revision), part.token_ids) for part in self.prompt[:-1]]
        token_ids = [*own.token_ids, *begun] if begun else own.token_ids
        return PrefixKey((*public, Named(Namespace(own.extra_key, revision), token_ids)))

    @property
    def max_tokens(self) -> int:
        """The most that one sequence of it can have."""
        return self.prompt_tokens + self.sampling.max_new_tokens

    @property
    def max_used_tokens(self) -> int:
        """The most that all its completions can use."""
        return self.prompt_tokens + self.sampling.n * self.sampling.max_new_tokens


def submit_message(generation: Generation, timeout_s: float, traceparent: str) -> worker_pb2.Submit:
    """Return what a worker is sent. `timeout_s` is what is left of its deadline; `traceparent` "": it is not traced."""
    return worker_pb2.Submit(
        request_id=generation.request_id,
        prompt=[
            worker_pb2.PromptSegment(extra_key=segment.extra_key, token_ids=segment.token_ids)
            for segment in generation.prompt
        ],
        tenant=generation.tenant,
        adapter=generation.adapter,
        adapter_revision=generation.adapter_revision,
        sampling=generation.sampling,
        timeout_ms=max(1, math.ceil(timeout_s * 1000)),  # 0 would mean no deadline
        priority=generation.priority,
        weight=generation.weight,
        cache_floor_tokens=generation.cache_floor_tokens,
        traceparent=traceparent,
    )
