"""What a step must cost at least: what it has to read and to multiply, at the speed this machine reads and multiplies.

The linear layers and attention come one after the other, and neither can be faster than the slower of its reading and
its multiplying. Weights are read once a step, keys and values of a slot once, whoever shares it. Norms, rotations,
exponentials and everything in Python count as nothing, and so does what the caches keep from step to step: a step
whose keys stay in the last-level cache may come out below its floor. Knows numbers only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from worker.batch import Batch


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A plain decoder with gated layers, all of one kind."""

    layers: int
    hidden: int
    intermediate: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read them from what a model folder's config.json says."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            intermediate=config["intermediate_size"],
            query_heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
        )

    @property
    def input_weights(self) -> int:
        """Of one layer's queries, keys and values."""
        return self.hidden * (self.query_heads + 2 * self.kv_heads) * self.head_dim

    @property
    def other_weights(self) -> int:
        """Of what follows one layer's attention."""
        return self.hidden * self.query_heads * self.head_dim + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def linear_weights(self) -> int:
        """Of all linear layers, the head among them."""
        return self.layers * (self.input_weights + self.other_weights) + self.head_weights

    @property
    def numbers_per_slot(self) -> int:
        """Keys and values of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class StepShape:
    rows: int  # tokens computed
    samples: int
    slots: int  # different ones that are read
    pairs: int  # over all rows, the positions each attends to

    @classmethod
    def of(cls, batch: Batch) -> Self:
        pairs = int((batch.positions.astype(np.int64) + 1).sum())
        return cls(batch.num_tokens, len(batch.samples), len(np.unique(batch.kv_indices)), pairs)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a machine reads and multiplies at best, with as many threads as the step has, in one number format."""

    bytes_per_s: float
    flop_per_s: float  # a multiplication and an addition count as two

    def seconds(self, num_bytes: float, flop: float) -> float:
        return max(num_bytes / self.bytes_per_s, flop / self.flop_per_s)


@dataclass(frozen=True, slots=True)
class Floor:
    linear_ms: float
    attention_ms: float

    @property
    def whole_ms(self) -> float:
        return self.linear_ms + self.attention_ms


def floor(sizes: ModelSizes, step: StepShape, speed: Speed, bytes_per_number: int) -> Floor:
    """Return what `step` costs at least. Behind the last attention only rows that sample are computed."""
    products = step.rows * (
        sizes.layers * sizes.input_weights + (sizes.layers - 1) * sizes.other_weights
    ) + step.samples * (sizes.other_weights + sizes.head_weights)
    linear_s = speed.seconds(sizes.linear_weights * bytes_per_number, 2 * products)
    # Keys times queries and weights times values: two products each of head_dim numbers.
    attended = 2 * 2 * step.pairs * sizes.layers * sizes.query_heads * sizes.head_dim
    attention_s = speed.seconds(step.slots * sizes.numbers_per_slot * bytes_per_number, attended)
    return Floor(1e3 * linear_s, 1e3 * attention_s)
