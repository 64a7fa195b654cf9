"""What sampling means, in float64, one row at a time and straight from the description in `worker.model.sampling`."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from worker.batch import SampleRow, SamplingParams
from worker.model.randomness import uniform

Float64Array = NDArray[np.float64]


def row(params: SamplingParams, position: int = 0, **fields: object) -> SampleRow:
    values: dict[str, object] = {
        "row": 0,
        "params": params,
        "position": position,
        "prompt_token_ids": np.zeros(0, np.int32),
        "output_token_ids": (),
    }
    return SampleRow(**(values | fields))  # type: ignore[arg-type]


def penalised(logits: Float64Array, wanted: SampleRow) -> Float64Array:
    """In float32, as logits are: two that rounding makes equal are ordered by id, and were not before."""
    params, changed = wanted.params, logits.astype(np.float32)
    for token in set(wanted.prompt_token_ids.tolist()) | set(wanted.output_token_ids):
        factor = np.float32(params.repetition_penalty)
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in set(wanted.output_token_ids):
        count = list(wanted.output_token_ids).count(token)
        changed[token] -= np.float32(params.presence_penalty + params.frequency_penalty * count)
    changed[list(wanted.banned_token_ids)] = -np.inf
    if wanted.allowed is not None:
        allowed = [bool(wanted.allowed[token // 32] >> np.uint32(token % 32) & 1) for token in range(len(changed))]
        changed[~np.array(allowed)] = -np.inf
    return changed.astype(np.float64)


def distribution(logits: Float64Array, params: SamplingParams) -> tuple[NDArray[np.intp], Float64Array]:
    """Return token ids in the order of the inverse CDF, and the probability of each."""
    ids = np.arange(len(logits))
    if params.temperature == 0.0:
        return ids, (ids == int(np.argmax(logits))).astype(np.float64)
    probabilities = np.exp((logits - logits.max()) / params.temperature)
    probabilities /= probabilities.sum()
    if params.top_k == 0 and params.top_p >= 1.0 and params.min_p == 0.0:
        return ids, probabilities
    order = np.lexsort((ids, -logits))
    ranked, weights = logits[order], probabilities[order]
    if params.top_k > 0:
        weights = np.where(ranked >= ranked[min(params.top_k, len(ranked)) - 1], weights, 0.0)
    weights = weights / weights.sum()
    if params.top_p < 1.0:
        keep = np.cumsum(weights) - weights < params.top_p
        keep[0] = True
        weights = np.where(keep, weights, 0.0)
    keep = weights >= params.min_p * weights[0]
    keep[0] = True
    weights = np.where(keep, weights, 0.0)
    return order, weights / weights.sum()


def acceptable(logits: Float64Array, wanted: SampleRow, slack: float = 2e-6) -> set[int]:
    """The tokens that a correct sampler in float32 may choose: one, except within rounding of a border."""
    changed = penalised(logits, wanted)
    params = wanted.params
    tokens = set()
    for top_p in {params.top_p, *(() if params.top_p >= 1.0 else (params.top_p - slack, params.top_p + slack))}:
        for factor in {1.0, 1.0 - slack, 1.0 + slack} if params.min_p else {1.0}:
            ids, weights = distribution(changed, replace(params, top_p=top_p, min_p=params.min_p * factor))
            cdf = np.cumsum(weights)
            for shift in (-slack, 0.0, slack):
                drawn = min(max(uniform(params.seed, wanted.position) + shift, 0.0), 1.0 - 1e-12)
                index = int(np.searchsorted(cdf, drawn, side="right"))
                tokens.add(int(ids[min(index, int(np.flatnonzero(weights)[-1]))]))
    return tokens
