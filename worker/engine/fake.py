"""An executor without a model, for tests of everything around it: exact, deterministic, and suspicious.

It keeps, for each slot, what KV would be there: KV of a token depends on all tokens before it, so the content is a
digest of the history up to and including the token. The next token is a digest of the whole history *read back through
the slots*. A slot that was reused too early, never written, or belongs elsewhere therefore raises at once, or else
changes the output. `HostContents` is the memory below: what is copied there and back, or saved and fetched, is still
known for what it is.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache.copies.transfer import Copy, Direction
from worker.batch import (
    BASE_MODEL,
    Batch,
    Int32Array,
    SampledToken,
    SampleRow,
    TextDelta,
    TextStream,
    TokenLogprobs,
)
from worker.engine.constraints import allows
from worker.engine.fake_constraint import FakeConstraint

_START = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SALT = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_NOTHING = -1

# What a slot holds: a token, where it stands, and the digest of the history up to and including it.
_CONTENT = np.dtype([("token", np.int64), ("position", np.int64), ("history", np.uint64)])

Digests = NDArray[np.uint64]
Contents = NDArray[np.void]  # of _CONTENT


class SlotContentError(AssertionError):
    """The slots of a batch don't hold what its sequences need."""


class FakeTicket:
    def __init__(self, done: bool, failed: bool) -> None:
        self.done = done
        self.failed = failed


class FakeAdapters:
    """Implements AdapterSource: places that know which adapter lies at them.

    `slow` loads end when a test says so; those of the revisions in `broken` fail.
    """

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.places: list[str | None] = [None] * num_places
        self.loads: list[tuple[str, int]] = []
        self.slow = False
        self.broken: set[str] = set()
        self._under_way: list[tuple[FakeTicket, str, int]] = []

    def load(self, revision: str, place: int) -> FakeTicket:
        self.loads.append((revision, place))
        self.places[place] = None
        ticket = FakeTicket(False, False)
        self._under_way.append((ticket, revision, place))
        if not self.slow:
            self.finish()
        return ticket

    def forget(self, revision: str, place: int | None) -> None:
        if place is not None:
            self.places[place] = None

    def finish(self) -> None:
        """All loads under way end."""
        for ticket, revision, place in self._under_way:
            ticket.done, ticket.failed = True, revision in self.broken
            self.places[place] = None if ticket.failed else revision
        self._under_way = []


class FakeExecutor:
    """Implements Executor over an array of slot contents. KV depends on the adapter at a sequence's place as well."""

    def __init__(self, num_slots: int, vocab_size: int, adapters: FakeAdapters | None = None) -> None:
        self._vocab_size = vocab_size
        self._adapters = adapters
        self.contents = _empty(num_slots)
        # Views of it, one for each field.
        self._tokens: NDArray[np.int64] = self.contents["token"]
        self._positions: NDArray[np.int64] = self.contents["position"]
        self._histories: Digests = self.contents["history"]

    def run(self, batch: Batch) -> list[SampledToken]:
        for gate in batch.gates:
            gate.wait(0)
        self._check_shape(batch)
        histories: Digests = np.concatenate([self._compute(batch, index) for index in range(batch.num_sequences)])
        return [self._sample(row, int(histories[row.row])) for row in batch.samples]

    def _check_shape(self, batch: Batch) -> None:
        """Verify what every batch promises, whatever its sequences."""
        lengths = np.diff(batch.qo_indptr)
        if not (lengths > 0).all() or batch.qo_indptr[-1] != batch.num_tokens:
            raise SlotContentError("the chunks don't cover the batch")
        if len(np.unique(batch.out_slots)) != batch.num_tokens:
            raise SlotContentError("two tokens of a step are written to one slot")
        written = np.zeros(len(self._tokens), dtype=np.bool_)
        written[batch.out_slots] = True
        for index, length in enumerate(lengths):
            slots = batch.kv_indices[batch.kv_indptr[index] : batch.kv_indptr[index + 1]]
            rows = slice(int(batch.qo_indptr[index]), int(batch.qo_indptr[index + 1]))
            if not np.array_equal(slots[-length:], batch.out_slots[rows]):
                raise SlotContentError("a sequence doesn't attend to what it writes")
            if not np.array_equal(batch.positions[rows], np.arange(len(slots) - length, len(slots))):
                raise SlotContentError("positions don't follow the sequence")
            if written[slots[:-length]].any():
                raise SlotContentError("a slot is written that a sequence of the same step reads")

    def _compute(self, batch: Batch, index: int) -> Digests:
        """Write the chunk of one sequence to its slots; return the digests up to each of its tokens, uint64[chunk]."""
        rows = slice(int(batch.qo_indptr[index]), int(batch.qo_indptr[index + 1]))
        slots = batch.kv_indices[batch.kv_indptr[index] : batch.kv_indptr[index + 1]]
        num_cached = len(slots) - (rows.stop - rows.start)
        history = self._read(slots[:num_cached], self._beginning(batch, index))
        written = batch.out_slots[rows]
        self._tokens[written] = batch.token_ids[rows]
        self._positions[written] = batch.positions[rows]
        for row, slot in zip(range(rows.start, rows.stop), written, strict=True):
            history = _extend(history, batch.token_ids[row : row + 1])
            self._histories[slot] = history[0]
        return self._histories[written]

    def _beginning(self, batch: Batch, index: int) -> Digests:
        """Return the digest of no tokens for the sequence's adapter."""
        if batch.adapters is None or batch.adapters[index] == BASE_MODEL:
            return _START
        revision = self._adapters.places[batch.adapters[index]] if self._adapters is not None else None
        if revision is None:
            raise SlotContentError("a sequence names a place where no adapter lies")
        return _beginning(revision)

    def _read(self, slots: Int32Array, beginning: Digests) -> Digests:
        """Return the digest of the history in `slots`, uint64[1], having verified all of it."""
        if len(slots) == 0:
            return beginning
        if not np.array_equal(self._positions[slots], np.arange(len(slots))):
            raise SlotContentError("a slot holds another position's token, or none")
        histories = self._histories[slots]
        before = np.concatenate((beginning, histories[:-1]))
        if not np.array_equal(_extend(before, self._tokens[slots]), histories):
            raise SlotContentError("a slot holds a token of another history")
        return histories[-1:]

    def _sample(self, row: SampleRow, history: int) -> SampledToken:
        if row.given_token_id is not None:
            return SampledToken(row.given_token_id, _score(history, row.given_token_id, row.num_logprobs or 0))
        token_id = _choose(history, self._vocab_size, row.params.seed)
        while token_id in row.banned_token_ids or not allows(row.allowed, token_id):
            token_id = (token_id + 1) % self._vocab_size
        if row.params.logprobs is None:
            return SampledToken(token_id)
        top = tuple((token_id, -1.0 - rank) for rank in range(row.params.logprobs))
        return SampledToken(token_id, TokenLogprobs(logprob=-1.0, top=top))


class HostContents:
    """The host's slots below the device's of a FakeExecutor: what copies move, and the pages that storage has of it.

    `copy` is the content of a fake transfer; the rest implements `hicache.pages.PagePool`.
    """

    def __init__(self, executor: FakeExecutor, num_slots: int) -> None:
        self.contents = _empty(num_slots)
        self._device = executor.contents

    def copy(self, copy: Copy) -> None:
        if copy.direction is Direction.MIRROR:
            self.contents[copy.host_slots] = self._device[copy.device_slots]
        else:
            self._device[copy.device_slots] = self.contents[copy.host_slots]

    def page_bytes(self, num_tokens: int) -> int:
        return _CONTENT.itemsize * num_tokens

    def read_page(self, host_slots: Int32Array) -> bytes:
        return self.contents[host_slots].tobytes()

    def write_page(self, host_slots: Int32Array, page: bytes) -> None:
        self.contents[host_slots] = np.frombuffer(page, dtype=_CONTENT)


def continuation(
    token_ids: Sequence[int],
    num_tokens: int,
    vocab_size: int,
    adapter: str = "",
    seed: int = 0,
    constraint: FakeConstraint | None = None,
) -> list[int]:
    """Return what FakeExecutor samples after a prompt, if nothing is banned: the truth, without slots and steps."""
    history = int((_beginning(adapter) if adapter else _START)[0])
    for token_id in token_ids:
        history = _extend_one(history, int(token_id))
    sampled: list[int] = []
    for place in range(num_tokens):
        token_id = _choose(history, vocab_size, seed)
        while constraint is not None and not allows(constraint.allowed(place), token_id):
            token_id = (token_id + 1) % vocab_size
        sampled.append(token_id)
        history = _extend_one(history, token_id)
    return sampled


def prompt_scores(token_ids: Sequence[int]) -> list[TokenLogprobs]:
    """Return what FakeExecutor reports of the tokens of a prompt, all but the first."""
    history = int(_START[0])
    scores = []
    for token_id, following in pairwise(token_ids):
        history = _extend_one(history, int(token_id))
        scores.append(_score(history, int(following), 0))
    return scores


class NumberText:
    """A text stream factory for tests: each token's text is its number and a space.

    Holds back the last `hold` pieces until more come or the sequence ends, as a real one holds half characters.
    """

    def __init__(self, hold: int = 0) -> None:
        self._hold = hold

    def open(self, prompt_token_ids: Int32Array, stop: tuple[str, ...]) -> TextStream:
        return _NumberStream(stop, self._hold)


class _NumberStream:
    def __init__(self, stop: tuple[str, ...], hold: int) -> None:
        self._stop = stop
        self._hold = hold
        self._held: list[str] = []

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        for token_id in token_ids:
            if str(token_id) in self._stop:
                return TextDelta(self.flush(), stopped=True)
            self._held.append(f"{token_id} ")
        certain = len(self._held) - self._hold
        text, self._held = "".join(self._held[: max(0, certain)]), self._held[max(0, certain) :]
        return TextDelta(text)

    def flush(self) -> str:
        text, self._held = "".join(self._held), []
        return text


def _empty(num_slots: int) -> Contents:
    """Return slots in which nothing was ever written: _CONTENT[num_slots]."""
    contents: Contents = np.zeros(num_slots, dtype=_CONTENT)
    contents["token"] = contents["position"] = _NOTHING
    return contents


def _beginning(revision: str) -> Digests:
    digest = blake2b(revision.encode(), digest_size=8).digest()
    return _START ^ np.frombuffer(digest, dtype=np.uint64)


def _extend(history: Digests, token_ids: NDArray[Any]) -> Digests:
    """Return the digests of `history`, each with one token more."""
    mixed: Digests = (history ^ (history >> np.uint64(29))) * _FACTOR + (
        token_ids.astype(np.uint64) + np.uint64(1)
    ) * _SALT
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _extend_one(history: int, token_id: int) -> int:
    """Return the same of one digest. A number by itself is faster than an array of one."""
    mixed = ((history ^ (history >> 29)) * int(_FACTOR) + (token_id + 1) * int(_SALT)) & _MASK
    return mixed ^ (mixed >> 32)


def _choose(history: int, vocab_size: int, seed: int) -> int:
    return ((history ^ (seed * int(_FACTOR) & _MASK)) >> 33) % vocab_size


def _score(history: int, token_id: int, num_top: int) -> TokenLogprobs:
    logprob = -((_extend_one(history, token_id) >> 33) % 4096) / 256
    return TokenLogprobs(logprob, tuple((token_id + rank, logprob - rank) for rank in range(num_top)))
