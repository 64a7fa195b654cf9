"""Simulated passes answer the same whatever the batch, the slots and the hits, and take the time they are told."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache.tiers.device import DevicePool, LayerShape
from worker.batch import BASE_MODEL, Batch, SampledToken, SampleRow, SamplingParams
from worker.lora.weights import AdapterWeights
from worker.simulate.adapters import AdapterOrigins
from worker.simulate.executor import PassTimes, SimulatedExecutor
from worker.simulate.history import digest_of
from worker.simulate.law import TokenLaw
from worker.simulate.pacing import Pacer

NUM_SLOTS = 256
LETTERS = tuple(range(32))
END = 40
NO_TIME = PassTimes(0.0, 0.0, 0.0)
GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0, logprobs=0)
Piece = tuple[int, int]  # tokens from, to


class Rig:
    """An executor, and sequences that lie in slots of their own."""

    def __init__(self, times: PassTimes = NO_TIME) -> None:
        self.slept: list[float] = []
        self.origins = AdapterOrigins()
        self.pool = DevicePool([LayerShape(1, 1, 1)], NUM_SLOTS, torch.int32, "cpu")
        law = TokenLaw(LETTERS, END, 1e-9)
        self.executor = SimulatedExecutor(self.pool, law, times, self.origins, Pacer(lambda: 0.0, self.slept.append))

    def run(
        self, pieces: Sequence[tuple[Sequence[int], Sequence[int], Piece]], adapters: Sequence[int] | None = None
    ) -> list[SampledToken]:
        """Compute a piece of each (tokens, slots, piece), and sample behind it."""
        ends = np.cumsum([end - start for _, _, (start, end) in pieces])
        rows = [
            SampleRow(int(last) - 1, GREEDY, end, np.array(tokens, dtype=np.int32), [])
            for last, (tokens, _, (_, end)) in zip(ends, pieces, strict=True)
        ]
        return self.executor.run(
            Batch(
                token_ids=ints([token for tokens, _, (start, end) in pieces for token in tokens[start:end]]),
                positions=ints([place for _, _, (start, end) in pieces for place in range(start, end)]),
                out_slots=ints([slot for _, slots, (start, end) in pieces for slot in slots[start:end]]),
                qo_indptr=ints([0, *ends]),
                kv_indptr=ints([0, *np.cumsum([end for _, _, (_, end) in pieces])]),
                kv_indices=ints([slot for _, slots, (_, end) in pieces for slot in slots[:end]]),
                samples=tuple(rows),
                adapters=None if adapters is None else ints(adapters),
            )
        )

    def digest(self, slot: int) -> int:
        """What a slot holds."""
        lower, upper = (int(plane[slot].item()) & 0xFFFFFFFF for plane in (self.pool.key(0), self.pool.value(0)))
        return upper << 32 | lower


def ints(values: Sequence[int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int32]]":
    return np.array(values, dtype=np.int32)


def token_ids(sampled: Sequence[SampledToken]) -> list[int]:
    return [token.token_id for token in sampled]


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=40),
    cuts=st.sets(st.integers(1, 39), max_size=5),
    slots=st.permutations(range(80)),
)
def test_a_history_means_the_same_however_it_is_cut_and_wherever_it_lies(
    tokens: list[int], cuts: set[int], slots: list[int]
) -> None:
    whole = Rig().run([(tokens, range(len(tokens)), (0, len(tokens)))])
    rig = Rig()
    borders = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    pieces = [rig.run([(tokens, slots[: len(tokens)], (start, end))]) for start, end in pairwise(borders)]
    assert pieces[-1] == whole


def test_neighbours_in_a_batch_change_nothing() -> None:
    one, other = [5, 6, 7, 8], [9, 9, 9]
    alone = [*Rig().run([(one, range(4), (0, 4))]), *Rig().run([(other, range(3), (0, 3))])]
    rig = Rig()
    rig.run([(one, range(4), (0, 2))])
    together = rig.run([(one, range(4), (2, 4)), (other, range(10, 13), (0, 3))])
    assert together == alone


def test_a_slot_that_holds_something_else_changes_what_follows() -> None:
    tokens = list(range(100, 120))
    rig = Rig()
    right = rig.run([(tokens, range(20), (0, 20))])
    rig.run([([1, 2, 3], range(17, 20), (0, 3))])  # writes over the last slots
    wrong = rig.run([([*tokens, 7], range(21), (20, 21))])
    rig = Rig()
    rig.run([(tokens, range(20), (0, 20))])
    assert right != wrong != rig.run([([*tokens, 7], range(21), (20, 21))])


def test_slots_hold_the_digest_of_the_tokens_up_to_them() -> None:
    rig = Rig()
    rig.run([([3, 1, 2], [7, 5, 9], (0, 3))])
    assert [rig.digest(slot) for slot in (7, 5, 9)] == [digest_of(ints([3, 1, 2][:end])) for end in (1, 2, 3)]


def test_adapters_compute_something_else_than_their_base_model() -> None:
    rig = Rig()
    rig.origins.put(0, AdapterWeights("ab" * 16, {}))
    rig.origins.put(1, AdapterWeights("cd" * 16, {}))
    tokens = list(range(50))
    rig.run([(tokens, range(place * 50, place * 50 + 50), (0, 50)) for place in range(3)], [BASE_MODEL, 0, 1])
    assert len({rig.digest(slot) for slot in (49, 99, 149)}) == 3
    assert rig.digest(49) == digest_of(ints(tokens))


def test_a_pass_takes_its_step_its_tokens_and_what_they_attend_to() -> None:
    rig = Rig(PassTimes(step_s=1.0, token_s=0.1, pair_s=0.01))
    rig.run([([1, 2, 3, 4], range(4), (0, 4))])  # pairs: 1 + 2 + 3 + 4
    rig.run([([1, 2, 3, 4, 5], range(5), (4, 5)), ([8, 8], range(10, 12), (0, 2))])  # 5 + 1 + 2
    # The clock stands still, also while it sleeps: what was not slept is owed.
    assert rig.slept[0] == pytest.approx(1.0 + 0.4 + 0.10)
    assert rig.slept[1] == pytest.approx(1.5 + 1.0 + 0.3 + 0.08)
