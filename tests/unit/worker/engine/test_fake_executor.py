"""The fake executor's whole worth is what it notices."""

from dataclasses import replace

import numpy as np
import pytest

from worker.batch import Batch, SampleRow, SamplingParams
from worker.engine.constraints import pack
from worker.engine.fake import FakeExecutor, SlotContentError, continuation, prompt_scores


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def batch(tokens: list[int], slots: list[int], cached_slots: list[int] | None = None) -> Batch:
    """Return a batch of one sequence whose first tokens lie in `cached_slots` already."""
    cached = cached_slots or []
    total = len(cached) + len(tokens)
    params = SamplingParams(max_new_tokens=1)
    return Batch(
        token_ids=array(*tokens),
        positions=np.arange(len(cached), total, dtype=np.int32),
        out_slots=array(*slots),
        qo_indptr=array(0, len(tokens)),
        kv_indptr=array(0, total),
        kv_indices=array(*cached, *slots),
        samples=(SampleRow(len(tokens) - 1, params, total, array(*tokens), []),),
    )


def test_chunks_do_not_change_the_next_token() -> None:
    whole = FakeExecutor(10, 1000).run(batch([5, 6, 7], [0, 1, 2]))
    pieces = FakeExecutor(10, 1000)
    pieces.run(batch([5, 6], [8, 3]))
    assert pieces.run(batch([7], [0], [8, 3])) == whole


def test_the_whole_history_decides_the_next_token() -> None:
    executor = FakeExecutor(10, 10**6)
    nexts = {executor.run(batch([first, 6, 7], [0, 1, 2]))[0].token_id for first in range(20)}
    assert len(nexts) == 20


def test_slots_never_written_are_noticed() -> None:
    with pytest.raises(SlotContentError, match="another position"):
        FakeExecutor(10, 1000).run(batch([7], [2], [0, 1]))


def test_slots_in_the_wrong_order_are_noticed() -> None:
    executor = FakeExecutor(10, 1000)
    executor.run(batch([5, 6], [0, 1]))
    with pytest.raises(SlotContentError, match="another position"):
        executor.run(batch([7], [2], [1, 0]))


def test_a_slot_reused_by_somebody_else_at_the_same_position_is_noticed() -> None:
    executor = FakeExecutor(10, 1000)
    executor.run(batch([5, 6, 7], [0, 1, 2]))
    executor.run(batch([5, 9], [3, 1]))
    with pytest.raises(SlotContentError, match="another history"):
        executor.run(batch([8], [4], [0, 1, 2]))


def test_a_token_of_another_history_is_noticed_even_if_the_token_is_the_same() -> None:
    executor = FakeExecutor(10, 1000)
    executor.run(batch([5, 6], [0, 1]))
    executor.run(batch([4, 6], [2, 3]))
    with pytest.raises(SlotContentError, match="another history"):
        executor.run(batch([8], [4], [0, 3]))


def test_two_tokens_in_one_slot_are_noticed() -> None:
    with pytest.raises(SlotContentError, match="one slot"):
        FakeExecutor(10, 1000).run(batch([5, 6], [1, 1]))


def test_writing_over_what_is_read_is_noticed() -> None:
    executor = FakeExecutor(10, 1000)
    executor.run(batch([5, 6], [0, 1]))
    with pytest.raises(SlotContentError, match="reads"):
        executor.run(batch([7], [1], [0, 1]))


def test_a_position_that_does_not_follow_is_noticed() -> None:
    with pytest.raises(SlotContentError, match="positions"):
        FakeExecutor(10, 1000).run(replace(batch([5, 6], [0, 1]), positions=array(0, 2)))


def test_a_sequence_that_does_not_see_its_own_tokens_is_noticed() -> None:
    with pytest.raises(SlotContentError, match="attend"):
        FakeExecutor(10, 1000).run(replace(batch([5, 6], [0, 1]), kv_indices=array(0, 2)))


def test_banned_tokens_are_not_sampled() -> None:
    executor = FakeExecutor(10, 5)
    plain = batch([1, 2], [0, 1])
    first = executor.run(plain)[0].token_id
    banned = replace(plain, samples=(replace(plain.samples[0], banned_token_ids=(first,)),))
    assert executor.run(banned)[0].token_id == (first + 1) % 5


def test_given_tokens_are_scored_by_the_history_before_them() -> None:
    rows = tuple(
        SampleRow(row, SamplingParams(max_new_tokens=1, prompt_logprobs=0), row + 1, array(), [], given_token_id=given)
        for row, given in enumerate((6, 7))
    )
    scored = FakeExecutor(10, 1000).run(replace(batch([5, 6, 7], [0, 1, 2]), samples=rows))
    assert [token.token_id for token in scored] == [6, 7]
    assert [token.logprobs for token in scored] == prompt_scores([5, 6, 7])


def test_a_seed_changes_what_is_sampled_and_a_constraint_what_may_be() -> None:
    plain = batch([5, 6], [0, 1])
    seeded = replace(plain.samples[0], params=SamplingParams(max_new_tokens=1, seed=9))
    held = replace(seeded, allowed=pack([3, 4], 1000))
    tokens = FakeExecutor(10, 1000).run(replace(plain, samples=(plain.samples[0], seeded, held)))
    assert [token.token_id for token in tokens[:2]] == [
        continuation([5, 6], 1, 1000)[0],
        continuation([5, 6], 1, 1000, seed=9)[0],
    ]
    assert tokens[0] != tokens[1]
    assert tokens[2].token_id in {3, 4}
