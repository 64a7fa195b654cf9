"""Chooses tokens from logits. Each choice is a function of its row's logits and its SampleRow, never of the batch.

The order of operations, equal to transformers' where that has one:

1. penalties and banned tokens (`worker.model.penalties`);
2. temperature 0: the largest logit, the smaller token id among equals. Otherwise logits are divided by temperature;
3. top_k keeps the tokens whose logit is at least the k-th largest (so equals at the border all stay);
4. top_p keeps the shortest run of the likeliest of these whose probability, renormalised, reaches top_p;
5. min_p keeps those at least min_p times as likely as the likeliest;
6. inverse CDF: one uniform number, drawn for (seed, position), is looked up in the cumulated probabilities.

Where a run of "the likeliest" is meant, and in the inverse CDF of filtered rows, tokens are ordered by logit, largest
first, and by id among equals. Unfiltered rows go through the vocabulary by id, which needs no sorting.

Rows are grouped by what they need. Filters need an order, and sorting a whole vocabulary is slow; so the likeliest
`CANDIDATES` are taken first, and a row whose filters turn out to keep all of them is done again with a full sort.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from worker.batch import SampledToken, SampleRow, SamplingParams, TokenLogprobs
from worker.model.penalties import penalised
from worker.model.randomness import uniform

CANDIDATES = 256


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """Sample one token for each row of `logits`, float32[rows, vocab_size]; the result is in the order of `rows`."""
    if not rows:
        return []
    tokens = choose(penalised(logits, rows), rows)
    logprobs = _logprobs(logits, tokens, rows)
    return [SampledToken(token, found) for token, found in zip(tokens, logprobs, strict=True)]


def choose(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Choose a token for each row of `logits`, which penalties and bans have already changed."""
    tokens = [0] * len(rows)
    methods = [_method(row.params) for row in rows]
    for method in (_greedy, _unfiltered, _filtered):
        members = [index for index, wanted in enumerate(methods) if wanted is method]
        if not members:
            continue
        selected = logits if len(members) == len(rows) else logits[torch.tensor(members, device=logits.device)]
        chosen = method(selected, [rows[index] for index in members]).tolist()
        for index, token in zip(members, chosen, strict=True):
            tokens[index] = token
    return tokens


_Method = Callable[[Tensor, Sequence[SampleRow]], Tensor]  # float32[rows, vocab_size] → int64[rows]


def _method(params: SamplingParams) -> _Method:
    if params.temperature == 0.0:
        return _greedy
    if params.top_k == 0 and params.top_p >= 1.0 and params.min_p == 0.0:
        return _unfiltered
    return _filtered


def _greedy(logits: Tensor, _rows: Sequence[SampleRow]) -> Tensor:
    return logits.argmax(dim=-1)  # the first of equals


def _unfiltered(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    probabilities = torch.softmax(_heated(logits, rows), dim=-1)
    return _inverse_cdf(probabilities.double(), rows)


def _filtered(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    heated = _heated(logits, rows)
    num_candidates = min(CANDIDATES, logits.shape[-1])
    ranked, ids = _in_order(*heated.topk(num_candidates))
    weights = _kept(ranked, torch.softmax(heated, dim=-1).gather(1, ids).double(), rows)
    chosen = ids.gather(1, _inverse_cdf(weights, rows)[:, None])[:, 0]
    if num_candidates < logits.shape[-1]:
        # If the last candidate or an equal of it is kept, by all filters or by top_k alone (whose total top_p needs),
        # then tokens that are no candidates might be as well.
        top_k = _top_k(rows, ranked)
        last = ranked[:, -1:]
        unsure = ((weights > 0) & (ranked == last)).any(dim=-1) | ((top_k > 0) & (_border(ranked, top_k) == last))[:, 0]
        for index in unsure.nonzero()[:, 0].tolist():
            chosen[index] = _filtered_by_full_sort(heated[index : index + 1], rows[index : index + 1])[0]
    return chosen


def _filtered_by_full_sort(heated: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    ranked, ids = heated.sort(dim=-1, descending=True, stable=True)
    weights = _kept(ranked, torch.softmax(heated, dim=-1).gather(1, ids).double(), rows)
    return ids.gather(1, _inverse_cdf(weights, rows)[:, None])[:, 0]


def _heated(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    temperatures = _column([row.params.temperature for row in rows], logits)
    # The maximum goes first: a tiny temperature must not turn two large logits into inf and inf.
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperatures.float()


def _in_order(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Order each row by value, largest first, and by id among equals, which `topk` leaves in any order."""
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, by_value)


def _kept(ranked: Tensor, probabilities: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Return `probabilities`, float64[rows, n] in the order of `ranked`, with 0 for what the filters drop."""
    top_k = _top_k(rows, ranked)
    top_p = _column([row.params.top_p for row in rows], ranked)
    min_p = _column([row.params.min_p for row in rows], ranked)

    weights = probabilities.masked_fill((top_k > 0) & (ranked < _border(ranked, top_k)), 0.0)
    reached = weights.cumsum(dim=-1)
    # Without top_k the probabilities of all tokens, candidates or not, sum up to 1.
    total = torch.where(top_k > 0, reached[:, -1:], 1.0)
    dropped = (top_p < 1.0) & (reached - weights >= top_p * total)
    dropped |= weights < min_p * weights[:, :1]
    dropped[:, 0] = False  # the likeliest always stays
    return weights.masked_fill_(dropped, 0.0)


def _border(ranked: Tensor, top_k: Tensor) -> Tensor:
    """The k-th largest logit of each row, or the last candidate's if there are fewer than k."""
    return ranked.gather(1, top_k.clamp(min=1, max=ranked.shape[-1]) - 1)


def _top_k(rows: Sequence[SampleRow], like: Tensor) -> Tensor:
    """int64[rows, 1]"""
    return torch.tensor([row.params.top_k for row in rows], device=like.device)[:, None]


def _inverse_cdf(weights: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Return int64[rows]: where each row's uniform number falls in its cumulated `weights`, float64[rows, n]."""
    cdf = weights.cumsum(dim=-1)
    drawn = _column([uniform(row.params.seed, row.position) for row in rows], weights)
    total = cdf[:, -1:].contiguous()
    index = torch.searchsorted(cdf, drawn * total, right=True)
    # Rounding can lift drawn * total to the total; the last entry with any weight is where that belongs. There is none
    # if the model's own logits were no numbers: any token will do then, but it must be one.
    last = torch.searchsorted(cdf, total, right=False).clamp_(max=weights.shape[-1] - 1)
    return torch.minimum(index, last)[:, 0]


def _column(values: list[float], like: Tensor) -> Tensor:
    """float64[rows, 1]"""
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _logprobs(logits: Tensor, tokens: list[int], rows: Sequence[SampleRow]) -> list[TokenLogprobs | None]:
    """What the rows that want it report, from `logits` as the model gave them."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    members = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not members:
        return found
    selected = torch.log_softmax(logits[torch.tensor(members, device=logits.device)], dim=-1)
    chosen_ids = torch.tensor([tokens[index] for index in members], device=logits.device)
    chosen = selected.gather(1, chosen_ids[:, None])[:, 0].tolist()
    most = min(max(rows[index].params.logprobs or 0 for index in members), logits.shape[-1])
    values, ids = _in_order(*selected.topk(most))
    likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    for index, logprob, top in zip(members, chosen, likeliest, strict=True):
        found[index] = TokenLogprobs(logprob, tuple(top[: rows[index].params.logprobs]))
    return found
