"""What an attention backend is, in terms every backend and every layer share.

Knows tensors and batches, no models: which layer asks, and where its keys lie, is told with each call.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from worker.batch import Batch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How one layer attends. Read from the model by a probe, the same for every step."""

    query_heads: int
    kv_heads: int  # divides query_heads: each serves query_heads // kv_heads neighbours
    key_dim: int  # of queries and keys
    value_dim: int
    scaling: float  # logits are scaling * q·k
    window: int | None = None  # a row at position p sees keys at positions > p - window
    softcap: float | None = None  # logits are softcap * tanh(logits / softcap)
    has_sinks: bool = False  # each query head has one more logit that takes weight and gives no value


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Views of one layer's slots in the pool; what this step computes is already written."""

    keys: Tensor  # dtype[num_slots, kv_heads, key_dim]
    values: Tensor  # dtype[num_slots, kv_heads, value_dim]


class AttentionPlan(Protocol):
    """One step's batch, prepared once and run for each layer."""

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        """Attend with every row of the batch.

        `query` is dtype[num_tokens, query_heads, key_dim]; `sinks`, float[query_heads], is given if `shape.has_sinks`.
        Return dtype[num_tokens, query_heads, value_dim], a tensor of its own.
        """
        ...


class AttentionBackend(Protocol):
    """Prepares batches. Stateless between steps as far as results go."""

    def plan(self, batch: Batch) -> AttentionPlan: ...
