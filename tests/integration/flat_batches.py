"""Drives an executor by hand: sequences in chunks over slots dealt out at random, prefill and decode in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool, LayerShape
from worker.attention.registry import backend_by_name
from worker.batch import BASE_MODEL, Batch, Int32Array, SampleRow, SamplingParams
from worker.model.executor import ModelExecutor
from worker.model.forward import IMPLEMENTATION
from worker.model.probe import probe
from worker.model.transformers_forward import TransformersModel

GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)


def executor_of(model: PreTrainedModel, num_slots: int, backend: str = "torch") -> ModelExecutor:
    probed = probe(model)
    layers = [LayerShape(p.shape.kv_heads, p.shape.key_dim, p.shape.value_dim) for p in probed]
    pool = DevicePool(layers, num_slots, model.dtype, model.device)
    definition = TransformersModel(model, probed, backend_by_name(backend, model.device))
    return ModelExecutor(definition, pool)


@dataclass
class Flow:
    """One sequence on its way: what it holds, where, and how far it is computed."""

    tokens: list[int]
    prompt_len: int
    slots: Int32Array
    starts_at: int  # step of its admission
    adapter: int = BASE_MODEL  # the place of its adapter
    computed: int = 0
    output: list[int] = field(default_factory=list)

    def chunk(self, limit: int) -> tuple[int, int]:
        return self.computed, min(len(self.tokens), self.computed + limit)


def generate_flat(
    executor: ModelExecutor,
    prompts: Sequence[Sequence[int]],
    num_new: int,
    *,
    chunk_tokens: int,
    num_slots: int,
    seed: int = 0,
    params: SamplingParams = GREEDY,
    shared: int = 0,
    stagger: int = 2,
    adapters: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return `num_new` tokens for each prompt, as `params` choose them.

    The first `shared` tokens of all prompts lie in the same slots, computed by the first of them; each starts
    `stagger` steps behind the one before. `adapters` are the places of theirs, if any has one.
    """
    deck = np.random.default_rng(seed).permutation(num_slots).astype(np.int32)
    common, rest = deck[:shared], deck[shared:]
    flows = []
    for index, prompt in enumerate(prompts):
        size = len(prompt) + num_new - shared
        own, rest = rest[:size], rest[size:]
        assert len(own) == size, "pool too small"
        adapter = BASE_MODEL if adapters is None else adapters[index]
        flows.append(Flow(list(prompt), len(prompt), np.concatenate([common, own]), index * stagger, adapter))
    step = 0
    while any(len(flow.output) < num_new for flow in flows):
        first_done = flows[0].computed >= shared
        active = [
            flow
            for flow in flows
            if flow.starts_at <= step and len(flow.output) < num_new and (flow is flows[0] or first_done)
        ]
        for flow in active:
            flow.computed = max(flow.computed, shared if flow is not flows[0] else 0)
        if active:
            _step(executor, active, chunk_tokens, params)
        step += 1
    return [flow.output for flow in flows]


def _step(executor: ModelExecutor, flows: Sequence[Flow], chunk_tokens: int, params: SamplingParams) -> None:
    spans = [flow.chunk(chunk_tokens) for flow in flows]
    ends = np.cumsum([end - begin for begin, end in spans])
    finishing = [index for index, flow in enumerate(flows) if spans[index][1] == len(flow.tokens)]
    batch = Batch(
        token_ids=_concat([flow.tokens[b:e] for flow, (b, e) in zip(flows, spans, strict=True)]),
        positions=_concat([range(b, e) for b, e in spans]),
        out_slots=_concat([flow.slots[b:e] for flow, (b, e) in zip(flows, spans, strict=True)]),
        qo_indptr=np.concatenate([[0], ends]).astype(np.int32),
        kv_indptr=np.cumsum([0, *(e for _, e in spans)]).astype(np.int32),
        kv_indices=_concat([flow.slots[:e] for flow, (_, e) in zip(flows, spans, strict=True)]),
        samples=tuple(
            SampleRow(
                row=int(ends[index]) - 1,
                params=params,
                position=len(flows[index].tokens),
                prompt_token_ids=np.array(flows[index].tokens[: flows[index].prompt_len], np.int32),
                output_token_ids=flows[index].output,
            )
            for index in finishing
        ),
        adapters=None
        if all(flow.adapter == BASE_MODEL for flow in flows)
        else np.array([flow.adapter for flow in flows], np.int32),
    )
    sampled = executor.run(batch)
    for flow, (_, end) in zip(flows, spans, strict=True):
        flow.computed = end
    for index, token in zip(finishing, sampled, strict=True):
        flows[index].tokens.append(token.token_id)
        flows[index].output.append(token.token_id)


def generate_plain(model: PreTrainedModel, prompt: Sequence[int], num_new: int) -> list[int]:
    """What transformers' own generate answers, greedily, with its eager attention and its own cache."""
    model.set_attn_implementation("eager")
    try:
        tokens = torch.tensor([list(prompt)])
        out = model.generate(  # type: ignore[operator]
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_new, min_new_tokens=num_new,
            do_sample=False,
        )  # fmt: skip
        return [int(token_id) for token_id in out[0, len(prompt) :]]
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _concat(parts: Sequence[object]) -> Int32Array:
    return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])
