"""What is yet to be computed of prompts, and whose it is; how fast passes are."""

from dataclasses import replace

import pytest

from tests.unit.worker.engine.harness import Rig, make_request, prompt
from worker.config import EngineConfig
from worker.engine.ports import LinkLoad, Request
from worker.engine.speeds import PassSpeeds


def over(link: int, request: Request) -> Request:
    return replace(request, sequence_id=(link, request.sequence_id[1]))


def small_steps(max_running: int = 4) -> EngineConfig:
    return EngineConfig(max_running=max_running, max_step_tokens=16, max_chunk_tokens=16, contested_prompt_tokens=16)


def test_what_is_pending_falls_chunk_by_chunk_and_is_nothing_when_all_decode() -> None:
    rig = Rig(config=small_steps())
    rig.submit(make_request(0, prompt(40), max_new_tokens=20))
    pending = []
    for _ in range(5):
        pending.append(rig.engine.load().pending_tokens)
        rig.step()
    assert pending == [40, 24, 8, 0, 0]


def test_each_link_has_its_own() -> None:
    rig = Rig(config=small_steps(max_running=1))
    rig.submit(over(1, make_request(0, prompt(40))), over(2, make_request(1, prompt(30, 1))))
    rig.submit(over(2, make_request(2, prompt(20, 2))))
    assert rig.engine.load().links == {1: LinkLoad(1, 40), 2: LinkLoad(2, 50)}
    rig.step()
    load = rig.engine.load()
    assert load.links == {1: LinkLoad(1, 24), 2: LinkLoad(2, 50)}
    assert load.pending_tokens == 74
    rig.run()
    assert rig.engine.load().links == {}


def test_what_a_waiting_one_would_find_is_not_pending() -> None:
    rig = Rig(config=small_steps(max_running=1))
    shared = prompt(32)
    rig.submit(make_request(0, shared))
    rig.run()
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=9), make_request(2, [*shared, *prompt(10, 2)]))
    assert rig.engine.load().pending_tokens == 20 + 10


def test_what_somebody_else_is_just_computing_is_pending_once() -> None:
    rig = Rig(config=EngineConfig(max_step_tokens=32, max_chunk_tokens=16))
    shared = prompt(100)
    rig.submit(make_request(0, [*shared, 1], max_new_tokens=9), make_request(1, [*shared, 2], max_new_tokens=9))
    rig.step()
    rig.step()
    computed = 2 * 16
    assert rig.engine.load().pending_tokens == 101 - computed + 1


def test_those_who_wait_long_profit_from_what_others_have_computed_meanwhile() -> None:
    rig = Rig(config=small_steps(max_running=1))
    shared = prompt(48)
    rig.submit(*(make_request(number, [*shared, number], max_new_tokens=40) for number in range(20)))
    assert rig.engine.load().pending_tokens == 20 * 49
    for _ in range(8):
        rig.step()
    assert rig.engine.load().pending_tokens == 19 * 1, "each lacks its last token, and the first one decodes"


def test_a_paused_one_has_little_to_compute_as_long_as_its_kv_is_there() -> None:
    rig = Rig(num_slots=100, config=EngineConfig(max_running=4, max_step_tokens=100, headroom_tokens=1))
    rig.submit(*(make_request(number, prompt(20, number), max_new_tokens=40) for number in range(4)))
    while not rig.observer.num_pauses:
        rig.step()
    load = rig.engine.load()
    assert load.waiting >= 1
    assert 0 < load.pending_tokens < 40
    rig.run()
    assert rig.engine.load().pending_tokens == 0


def test_cancelled_ones_have_nothing_left_to_compute() -> None:
    rig = Rig(config=small_steps(max_running=1))
    rig.submit(*(make_request(number, prompt(40, number)) for number in range(3)))
    rig.step()
    for number in range(3):
        rig.engine.cancel((0, number), rig.now)
    assert rig.engine.load().links == {}
    rig.run()


def test_completions_of_one_request_are_sequences_each() -> None:
    rig = Rig(config=small_steps())
    request = make_request(0, prompt(10), max_new_tokens=9)
    rig.submit(replace(request, params=replace(request.params, n=3)))
    rig.step()
    rig.step()
    assert rig.engine.load().links[0].sequences == 3
    rig.run()
    assert rig.engine.load().links == {}


# Speeds


def test_nobody_knows_how_fast_passes_are_before_the_first_one() -> None:
    speeds = PassSpeeds()
    assert (speeds.prefill_tokens_per_s, speeds.step_s) == (0.0, 0.0)


def test_passes_that_only_decode_say_nothing_of_how_fast_prompts_are_computed() -> None:
    speeds = PassSpeeds()
    speeds.passed(100, 0, 0.02)
    assert speeds.prefill_tokens_per_s == 0.0
    assert speeds.step_s == pytest.approx(0.02)
    speeds.passed(500, 400, 0.02)
    assert speeds.prefill_tokens_per_s == pytest.approx(25_000)


def test_an_engine_tells_what_its_passes_took() -> None:
    rig = Rig(config=EngineConfig(max_step_tokens=100, max_chunk_tokens=100), clock=lambda: rig.now + 0.25)
    rig.submit(make_request(0, prompt(300)))
    rig.run()
    load = rig.engine.load()
    assert load.prefill_tokens_per_s == pytest.approx(100 / 0.25)
    assert load.step_s == pytest.approx(0.25)
