"""What changes logits before a token is chosen: penalties on tokens seen, and tokens that are banned.

Order and meaning: first the repetition penalty over prompt and output, as in transformers (a positive logit is
divided by it, a negative one multiplied); then, over the output only, `presence_penalty` once and `frequency_penalty`
per occurrence, subtracted, as in the OpenAI API; then banned tokens get -inf. However extreme a penalty is, the logits
of tokens that are not banned stay finite: what follows need not expect infinities that cancel out to nan.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.batch import SampleRow


def changes_logits(row: SampleRow) -> bool:
    params = row.params
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(row.banned_token_ids)
    )


def penalised(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Return `logits`, float32[rows, vocab_size], with each row's penalties applied; a copy if there are any."""
    affected = [index for index, row in enumerate(rows) if changes_logits(row)]
    if not affected:
        return logits
    changed = logits.clone()
    for index in affected:
        _penalise(changed[index], rows[index])
    return changed


def _penalise(logits: Tensor, row: SampleRow) -> None:
    """Change one row in place."""
    params = row.params
    output = np.asarray(row.output_token_ids, dtype=np.int64)
    if params.repetition_penalty != 1.0:
        seen = _tensor(np.unique(np.concatenate([row.prompt_token_ids, output])), logits)
        found = logits[seen]
        logits[seen] = torch.where(found > 0, found / params.repetition_penalty, found * params.repetition_penalty)
    if len(output) and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0):
        tokens, counts = np.unique(output, return_counts=True)
        penalty = params.presence_penalty + params.frequency_penalty * counts
        logits[_tensor(tokens, logits)] -= torch.from_numpy(penalty).to(logits)
    largest = torch.finfo(logits.dtype).max
    logits.clamp_(min=-largest, max=largest)
    if row.banned_token_ids:
        logits[_tensor(np.asarray(row.banned_token_ids, dtype=np.int64), logits)] = float("-inf")


def _tensor(token_ids: NDArray[np.integer[Any]], like: Tensor) -> Tensor:
    return torch.from_numpy(token_ids.astype(np.int64)).to(like.device)
