"""Chooses tokens from logits. Each choice is a function of its row's logits and its SampleRow, never of the batch.

The order of operations, equal to transformers' where that has one:

1. penalties, banned tokens and constraints (`worker.model.penalties`);
2. temperature 0: the largest logit, the smaller token id among equals. Otherwise logits are divided by temperature;
3. top_k keeps the tokens whose logit is at least the k-th largest (so equals at the border all stay);
4. top_p keeps the shortest run of the likeliest of these whose probability, renormalised, reaches top_p;
5. min_p keeps those at least min_p times as likely as the likeliest;
6. inverse CDF: one uniform number, drawn for (seed, position), is looked up in the cumulated probabilities.

Where a run of "the likeliest" is meant, and in the inverse CDF of filtered rows, tokens are ordered by logit, largest
first, and by id among equals. Unfiltered rows go through the vocabulary by id, which needs no sorting.

Rows are grouped by what they need. Filters need an order, and sorting a whole vocabulary is slow; so the likeliest
`CANDIDATES` are taken first, and rows whose filters turn out to keep all of them are done again with more, in the end
with a full sort. That changes nothing in what is chosen.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from worker.batch import SampledToken, SampleRow, SamplingParams, TokenLogprobs
from worker.model import blocks
from worker.model.penalties import penalised
from worker.model.randomness import uniform

CANDIDATES = 256
_FEW_CANDIDATES = 64  # enough where each row has a smaller top_k
_MANY_CANDIDATES = 4096


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """Sample one token for each row of `logits`, float32[rows, vocab_size]; the result is in the order of `rows`.

    Where the token is given, that is the token.
    """
    if not rows:
        return []
    tokens = _given_or_chosen(logits, rows)
    logprobs = _logprobs(logits, tokens, rows)
    return [SampledToken(token, found) for token, found in zip(tokens, logprobs, strict=True)]


def _given_or_chosen(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    open_rows = [index for index, row in enumerate(rows) if row.given_token_id is None]
    if len(open_rows) == len(rows):
        return choose(penalised(logits, rows), rows)
    tokens = [row.given_token_id or 0 for row in rows]
    if open_rows:
        members = [rows[index] for index in open_rows]
        chosen = choose(penalised(logits[torch.tensor(open_rows, device=logits.device)], members), members)
        for index, token in zip(open_rows, chosen, strict=True):
            tokens[index] = token
    return tokens


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
    return blocks.argmax(logits)


def _unfiltered(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    # In place, and not normalised: memory that is asked for anew costs more than what is computed in it.
    weights = _heated(logits, rows).exp_()
    return blocks.inverse_cdf(weights, _drawn(rows, weights))


def _filtered(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    heated = _heated(logits, rows)
    probabilities = torch.softmax(heated, dim=-1)
    chosen = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    unsure = list(range(len(rows)))
    for num_candidates in _stages(rows, logits.shape[-1]):
        some = torch.tensor(unsure, device=logits.device)
        whole = len(unsure) == len(rows)
        found, sure = _filtered_among(
            heated if whole else heated[some],
            probabilities if whole else probabilities[some],
            [rows[index] for index in unsure],
            num_candidates,
        )
        chosen[some] = found
        unsure = some[~sure].tolist()
        if not unsure:
            break
    return chosen


def _stages(rows: Sequence[SampleRow], vocab_size: int) -> list[int]:
    """How many candidates to try, one after another. The last number is all there are, the same for every batch."""
    most = max(row.params.top_k for row in rows)
    few = _FEW_CANDIDATES if most < _FEW_CANDIDATES and all(row.params.top_k for row in rows) else CANDIDATES
    return [*(number for number in (few, _MANY_CANDIDATES) if number < vocab_size), vocab_size]


def _filtered_among(
    heated: Tensor, probabilities: Tensor, rows: Sequence[SampleRow], num_candidates: int
) -> tuple[Tensor, Tensor]:
    """Return the tokens chosen among the likeliest, int64[rows], and whether more candidates could change them."""
    if num_candidates < heated.shape[-1]:
        ranked, ids = _in_order(*blocks.topk(heated, num_candidates))
    else:
        ranked, ids = heated.sort(dim=-1, descending=True, stable=True)
    weights = _kept(ranked, probabilities.gather(1, ids).double(), rows)
    chosen = ids.gather(1, _inverse_cdf(weights, rows)[:, None])[:, 0]
    # If the last candidate or an equal of it is kept, by all filters or by top_k alone (whose total top_p needs),
    # then tokens that are no candidates might be as well. Not if it is forbidden: then all others are, too.
    top_k = _top_k(rows, ranked)
    last = ranked[:, -1:]
    unsure = ((weights > 0) & (ranked == last)).any(dim=-1) | ((top_k > 0) & (_border(ranked, top_k) == last))[:, 0]
    unsure &= last[:, 0] > float("-inf")
    return chosen, ~unsure


def _heated(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    temperatures = _column([row.params.temperature for row in rows], logits)
    # The maximum goes first: a tiny temperature must not turn two large logits into inf and inf.
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures.float())


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
    return blocks.place(cdf, _drawn(rows, cdf) * cdf[:, -1:])[:, 0]


def _drawn(rows: Sequence[SampleRow], like: Tensor) -> Tensor:
    """float64[rows, 1]: the uniform number of each row."""
    return _column([uniform(row.params.seed, row.position) for row in rows], like)


def _column(values: list[float], like: Tensor) -> Tensor:
    """float64[rows, 1]"""
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _logprobs(logits: Tensor, tokens: list[int], rows: Sequence[SampleRow]) -> list[TokenLogprobs | None]:
    """What the rows that want it report, from `logits` as the model gave them."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    members = [index for index, row in enumerate(rows) if row.num_logprobs is not None]
    if not members:
        return found
    if len(members) < len(rows):
        logits = logits[torch.tensor(members, device=logits.device)]
    selected = torch.log_softmax(logits, dim=-1)
    chosen_ids = torch.tensor([tokens[index] for index in members], device=logits.device)
    chosen = selected.gather(1, chosen_ids[:, None])[:, 0].tolist()
    most = min(max(rows[index].num_logprobs or 0 for index in members), logits.shape[-1])
    values, ids = _in_order(*blocks.topk(selected, most))
    likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    for index, logprob, top in zip(members, chosen, likeliest, strict=True):
        found[index] = TokenLogprobs(logprob, tuple(top[: rows[index].num_logprobs]))
    return found
