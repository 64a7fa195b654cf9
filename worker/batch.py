"""The values that the engine and the model exchange: one step's batch in, sampled tokens out.

Knows numpy, no torch. Metadata follows FlashInfer's CSR convention, so that attention backends are interchangeable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Uint32Array = NDArray[np.uint32]

BASE_MODEL = -1
"""In `Batch.adapters`: the sequence runs on the base model's own weights."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request samples. Validated at the gateway; every default is resolved there.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and the neutral penalties are off. `logprobs` None
    reports none, 0 the chosen token's only, k the k likeliest as well; `prompt_logprobs` does so for the prompt's
    tokens. `n` completions share the prompt.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    logprobs: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to sample: from which row of the batch, and everything its choice may depend on.

    The choice is a function of this value and the row's logits alone, never of the rest of the batch: randomness
    is counter-based on (`params.seed`, `position`). Where the next token is given, only its log probability is asked
    for.
    """

    row: int  # index into Batch.token_ids: the last token of its sequence's chunk, or one before a given token
    params: SamplingParams
    position: int  # index in the sequence (prompt included) of the token to be sampled
    prompt_token_ids: Int32Array  # int32[prompt_len], for the repetition penalty
    output_token_ids: Sequence[int]  # sampled so far; a live view, read during the step only
    banned_token_ids: tuple[int, ...] = ()  # may not be sampled now (end tokens before min_new_tokens)
    # uint32[ceil(vocab_size / 32)], bit i of word w for token 32 w + i: what may be sampled; None: everything. What is
    # banned as well leaves something over.
    allowed: Uint32Array | None = None
    given_token_id: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report; None: no log probabilities at all."""
        return self.params.logprobs if self.given_token_id is None else self.params.prompt_logprobs


class LayerGate(Protocol):
    """Holds back a forward pass that follows a load under way, layer by layer."""

    def wait(self, layer: int) -> None:
        """To be called on the thread that computes, before `layer` reads slots. Layers count as the pool's do."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's forward pass: the chunks of all its sequences flattened to one row, in CSR form.

    Sequence i owns rows qo_indptr[i]:qo_indptr[i+1] and attends to the slots kv_indices[kv_indptr[i]:kv_indptr[i+1]],
    which hold its tokens 0..kv_len-1 in order and include the slots that this step writes (the last ones). Row r of
    sequence i sees the keys of positions <= positions[r].
    """

    token_ids: Int32Array  # int32[num_tokens]
    positions: Int32Array  # int32[num_tokens], position in its own sequence
    out_slots: Int32Array  # int32[num_tokens], where each token's K and V are written
    qo_indptr: Int32Array  # int32[num_sequences + 1]
    kv_indptr: Int32Array  # int32[num_sequences + 1]
    kv_indices: Int32Array  # int32[kv_indptr[-1]], slot ids
    samples: tuple[SampleRow, ...]  # in order of sequence and row; several may sample from one row
    gates: tuple[LayerGate, ...] = ()  # of loads under way that some sequence reads
    # int32[num_sequences]: the place of each sequence's adapter, BASE_MODEL for none; None: nobody has one. Sequences
    # with the same adapter stand side by side.
    adapters: Int32Array | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.qo_indptr) - 1


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities under the model's own distribution (temperature 1, no penalties)."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, log probability), likeliest first


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None = None


class Executor(Protocol):
    """Runs forward passes, one at a time and always from the same thread. The model implements it."""

    def run(self, batch: Batch) -> list[SampledToken]:
        """Write K and V of every token of `batch` to its out slot and sample one token per entry of `batch.samples`.

        The result is in the order of `batch.samples`.
        """
        ...


class PendingStep(Protocol):
    """A forward pass under way."""

    def result(self) -> list[SampledToken]:
        """Wait for the pass to end and return what `Executor.run` would; raises what it would. Called once."""
        ...


class AsyncExecutor(Protocol):
    """Starts forward passes. The engine owns this port; one pass is under way at a time.

    Called from the engine's thread only. Until `PendingStep.result` returns, the batch stays as it was handed over,
    and no slot that it names is given to anybody else.
    """

    def start(self, batch: Batch) -> PendingStep:
        """Begin to run `batch`; return at once where passes can run beside their caller."""
        ...


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Newly certain text, and whether a stop string ended the sequence (the text ends before it)."""

    text: str
    stopped: bool = False


class TextStream(Protocol):
    """Turns one sequence's tokens into text as they come: never half a character, never part of a stop string."""

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Take newly sampled tokens; return what text has become certain."""
        ...

    def flush(self) -> str:
        """The sequence has ended: return the text that was held back."""
        ...


class TextStreamFactory(Protocol):
    def open(self, prompt_token_ids: Int32Array, stop: tuple[str, ...]) -> TextStream:
        """Return the text stream of a new sequence; the prompt gives context, none of its text comes out."""
        ...
