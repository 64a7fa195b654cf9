"""What changes logits before a token is chosen: penalties on tokens seen, tokens that are banned, and constraints.

Order and meaning: first the repetition penalty over prompt and output, as in transformers (a positive logit is
divided by it, a negative one multiplied); then, over the output only, `presence_penalty` once and `frequency_penalty`
per occurrence, subtracted, as in the OpenAI API; then banned tokens get -inf, and all that a constraint does not allow.
However extreme a penalty is, the logits of the other tokens stay finite: what follows need not expect infinities that
cancel out to nan.
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
        or row.allowed is not None
    )


def penalised(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Return `logits`, float[rows, vocab_size], with each row's penalties applied; a copy if there are any.

    Each kind changes the tokens of all rows at once, and looks at no others.
    """
    affected = [(index, row) for index, row in enumerate(rows) if changes_logits(row)]
    if not affected:
        return logits
    changed = logits.clone()
    _penalise_repetition(changed, affected)
    _penalise_output(changed, affected)
    banned = [(index, np.asarray(row.banned_token_ids)) for index, row in affected if row.banned_token_ids]
    if banned:
        changed[_places(banned, logits)] = float("-inf")
    _forbid(changed, affected)
    return changed


_Affected = Sequence[tuple[int, SampleRow]]  # with their index in the batch
_Places = tuple[Tensor, Tensor]  # int64[n] rows, int64[n] tokens


def _penalise_repetition(logits: Tensor, affected: _Affected) -> None:
    # A token may stand here several times: each time the same is written.
    seen = [
        (index, np.concatenate([row.prompt_token_ids, np.asarray(row.output_token_ids, dtype=np.int64)]))
        for index, row in affected
        if row.params.repetition_penalty != 1.0
    ]
    if not seen:
        return
    places = _places(seen, logits)
    penalties = [row.params.repetition_penalty for _, row in affected if row.params.repetition_penalty != 1.0]
    penalty = torch.from_numpy(np.repeat(penalties, [len(tokens) for _, tokens in seen])).to(logits)
    found = logits[places]
    logits[places] = _finite(torch.where(found > 0, found / penalty, found * penalty))


def _penalise_output(logits: Tensor, affected: _Affected) -> None:
    told: list[tuple[int, NDArray[np.integer[Any]]]] = []
    penalties: list[NDArray[np.floating[Any]]] = []
    for index, row in affected:
        params = row.params
        if row.output_token_ids and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0):
            tokens, counts = np.unique(np.asarray(row.output_token_ids), return_counts=True)
            told.append((index, tokens))
            penalties.append(params.presence_penalty + params.frequency_penalty * counts)
    if told:
        places = _places(told, logits)
        logits[places] = _finite(logits[places] - torch.from_numpy(np.concatenate(penalties)).to(logits))


def _forbid(logits: Tensor, affected: _Affected) -> None:
    constrained = [(index, row.allowed) for index, row in affected if row.allowed is not None]
    if not constrained:
        return
    packed = np.stack([allowed for _, allowed in constrained])  # uint32[rows, words]
    # Unpacked on the host, where one instruction does it for 64 tokens.
    allowed = np.unpackbits(packed.view(np.uint8), axis=1, count=logits.shape[-1], bitorder="little")
    forbidden = torch.from_numpy(allowed == 0).to(logits.device)
    rows = torch.tensor([index for index, _ in constrained], device=logits.device)
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))


def _finite(values: Tensor) -> Tensor:
    largest = torch.finfo(values.dtype).max
    return values.clamp_(min=-largest, max=largest)


def _places(tokens: Sequence[tuple[int, NDArray[np.integer[Any]]]], like: Tensor) -> _Places:
    """Where the tokens of some rows stand in the logits of all."""
    rows = np.repeat([index for index, _ in tokens], [len(ids) for _, ids in tokens])
    columns = np.concatenate([ids for _, ids in tokens]).astype(np.int64)
    return torch.from_numpy(rows).to(like.device), torch.from_numpy(columns).to(like.device)
