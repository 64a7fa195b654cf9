"""What sequences find in the cache, what they leave there, and how it is counted."""

import pytest

from tests.unit.worker.engine.harness import TENANT_B, Rig, answer, make_request, prompt
from worker.config import EngineConfig
from worker.engine import FinishReason


def test_a_cold_prompt_in_three_chunks_has_no_cached_tokens() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=10))
    rig.submit(make_request(0, prompt(30), max_new_tokens=1))
    assert rig.run() == 3
    assert rig.admission(0).hit.total == 0
    assert rig.admission(0).computed_tokens == 30


@pytest.mark.parametrize(("page_size", "length", "expected"), [(1, 50, 49), (16, 50, 48), (16, 48, 32), (16, 10, 0)])
def test_the_second_run_of_a_prompt_computes_its_last_token_or_page_only(
    page_size: int, length: int, expected: int
) -> None:
    rig = Rig(num_slots=1600, page_size=page_size)
    rig.submit(make_request(0, prompt(length)))
    rig.run()
    rig.submit(make_request(1, prompt(length)))
    rig.run()
    assert rig.admission(1).hit.device == expected
    assert rig.admission(1).prompt_tokens == length
    assert rig.tokens(1) == rig.tokens(0) == answer(prompt(length), 4)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_prompt_lengths_around_a_page(page_size: int, length: int) -> None:
    rig = Rig(num_slots=160, page_size=page_size)
    for number in range(2):
        rig.submit(make_request(number, prompt(length)))
        rig.run()
        assert rig.tokens(number) == answer(prompt(length), 4)
    rig.assert_nothing_is_held()


def test_another_namespace_finds_nothing() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(50)))
    rig.run()
    rig.submit(make_request(1, prompt(50), namespace=TENANT_B))
    rig.run()
    assert rig.admission(1).hit.total == 0


def test_the_next_turn_of_a_conversation_finds_prompt_and_answer() -> None:
    rig = Rig()
    first = prompt(20)
    rig.submit(make_request(0, first, max_new_tokens=10))
    rig.run()
    second = [*first, *rig.tokens(0), 1, 2, 3]
    rig.submit(make_request(1, second))
    rig.run()
    # The last answered token was never fed back, so its KV does not exist.
    assert rig.admission(1).hit.device == 20 + 10 - 1


def test_a_prefix_is_shared_while_the_one_who_computes_it_still_runs() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=32))
    shared = prompt(64)
    rig.submit(make_request(0, [*shared, *prompt(500, 1)], max_new_tokens=50))
    rig.step()
    rig.step()
    rig.submit(make_request(1, [*shared, 1, 2, 3], max_new_tokens=1))
    rig.step()
    assert rig.finish(1) is FinishReason.LENGTH
    assert rig.finish(0) is None
    assert rig.admission(1).hit.device == 64


def test_a_prefix_in_the_making_is_awaited_and_computed_once() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=32, max_step_tokens=512))
    shared = prompt(100)
    rig.submit(*(make_request(number, [*shared, number], max_new_tokens=2) for number in range(8)))
    rig.run()
    assert [rig.admission(number).hit.device for number in range(8)] == [0] + [100] * 7
    assert sum(batch.num_tokens for batch in rig.executor.batches) == 101 + 7 + 8
    for number in range(8):
        assert rig.tokens(number) == answer([*shared, number], 2)


def test_the_same_prompt_in_another_namespace_is_not_awaited() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(100)), make_request(1, prompt(100), namespace=TENANT_B))
    rig.step()
    assert rig.engine.load().running == 2


def test_a_short_common_start_is_not_worth_waiting_for() -> None:
    rig = Rig(config=EngineConfig(min_shared_tokens=16))
    rig.submit(make_request(0, [*prompt(15), 1, *prompt(30, 1)]), make_request(1, [*prompt(15), 2, *prompt(30, 2)]))
    rig.step()
    assert rig.engine.load().running == 2


def test_those_behind_a_follower_are_not_held_up() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=16, max_step_tokens=256))
    shared = prompt(160)
    rig.submit(make_request(0, shared), make_request(1, shared), make_request(2, prompt(20, 2), max_new_tokens=1))
    rig.step()
    assert rig.engine.load().waiting == 1
    rig.step()
    assert rig.finish(2) is FinishReason.LENGTH


@pytest.mark.parametrize("end", ["cancelled", "broken"])
def test_a_follower_goes_on_alone_when_its_leader_is_gone(end: str) -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=32, max_step_tokens=64))
    shared = prompt(400)
    rig.submit(make_request(0, shared), make_request(1, shared))
    rig.step()
    rig.step()
    if end == "cancelled":
        rig.engine.cancel((0, 0), rig.now)
    else:
        rig.executor.break_in = {3}
    rig.run()
    assert rig.tokens(1) == answer(shared, 4)
    assert rig.admission(1).hit.device == 64
    rig.assert_nothing_is_held()


def test_a_follower_that_is_cancelled_leaves_no_trace() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=32))
    rig.submit(make_request(0, prompt(100)), make_request(1, prompt(100)))
    rig.step()
    rig.engine.cancel((0, 1), rig.now)
    rig.run()
    rig.submit(make_request(1, prompt(100)))
    rig.run()
    rig.assert_nothing_is_held()


def test_cached_and_computed_tokens_add_up_to_the_prompt() -> None:
    rig = Rig(num_slots=400, config=EngineConfig(max_running=4, max_chunk_tokens=8, max_step_tokens=32))
    for number in range(30):
        rig.submit(make_request(number, [*prompt(40, number % 3), *prompt(number, number)]))
    rig.run()
    assert len(rig.observer.admissions) == 30
    for number in range(30):
        admission = rig.admission(number)
        hit = admission.hit
        assert hit.device + hit.host + hit.storage + admission.computed_tokens == 40 + number


def test_without_pauses_exactly_the_tokens_counted_as_computed_are_computed() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=8, max_step_tokens=40))
    for number in range(20):
        rig.submit(make_request(number, [*prompt(40, number % 3), *prompt(number, number)], max_new_tokens=1))
    rig.run()
    computed = sum(rig.admission(number).computed_tokens for number in range(20))
    assert sum(batch.num_tokens for batch in rig.executor.batches) == computed
