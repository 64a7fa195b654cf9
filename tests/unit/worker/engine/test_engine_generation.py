"""What one sequence yields, and how it ends."""

import pytest

from tests.unit.worker.engine.harness import EOS, VOCAB, Rig, answer, make_request, prompt
from worker.batch import Int32Array, SamplingParams, TextStream
from worker.config import EngineConfig
from worker.engine import FinishReason
from worker.engine.fake import NumberText, continuation


def params(**overrides: object) -> SamplingParams:
    values: dict[str, object] = {"max_new_tokens": 20, "temperature": 0.0, "ignore_eos": True, **overrides}
    return SamplingParams(**values)  # type: ignore[arg-type]


def run_alone(sampling: SamplingParams, **rig_options: object) -> Rig:
    rig = Rig(**rig_options)  # type: ignore[arg-type]
    rig.submit(make_request(0, [1, 2, 3], params=sampling))
    rig.run()
    return rig


def test_a_sequence_ends_with_its_last_allowed_token() -> None:
    rig = run_alone(params(max_new_tokens=7))
    assert len(rig.tokens(0)) == 7
    assert rig.finish(0) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_a_single_new_token_needs_a_single_step() -> None:
    rig = Rig()
    rig.submit(make_request(0, [5], max_new_tokens=1))
    assert rig.run() == 1
    assert rig.tokens(0) == answer([5], 1)


def test_an_end_token_ends_the_sequence_is_reported_and_gives_no_text() -> None:
    plain = run_alone(params())
    end_token = plain.tokens(0)[4]
    rig = run_alone(params(ignore_eos=False), eos_token_ids=(end_token,))
    assert rig.tokens(0) == plain.tokens(0)[:5]
    assert rig.text(0) == "".join(f"{token} " for token in plain.tokens(0)[:4])
    assert rig.finish(0) is FinishReason.STOP


def test_an_end_token_is_like_any_other_under_ignore_eos() -> None:
    plain = run_alone(params())
    rig = run_alone(params(ignore_eos=True), eos_token_ids=(plain.tokens(0)[4],))
    assert rig.tokens(0) == plain.tokens(0)


def test_a_stop_token_id_of_the_request_ends_it_even_under_ignore_eos() -> None:
    plain = run_alone(params())
    rig = run_alone(params(stop_token_ids=(plain.tokens(0)[2],)))
    assert rig.tokens(0) == plain.tokens(0)[:3]
    assert rig.finish(0) is FinishReason.STOP


def test_no_end_token_comes_before_min_new_tokens() -> None:
    plain = run_alone(params())
    end_token = plain.tokens(0)[2]
    rig = run_alone(params(ignore_eos=False, min_new_tokens=10), eos_token_ids=(end_token,))
    assert end_token not in rig.tokens(0)[:10]
    assert len(rig.tokens(0)) >= 10


def test_min_new_tokens_bans_end_tokens_exactly_until_it_is_reached() -> None:
    rig = run_alone(params(ignore_eos=False, min_new_tokens=3, stop_token_ids=(7,), max_new_tokens=5))
    banned = [batch.samples[0].banned_token_ids for batch in rig.executor.batches]
    assert banned == [(7, EOS), (7, EOS), (7, EOS), (), ()]


def test_a_stop_string_ends_the_sequence_and_is_no_part_of_its_text() -> None:
    plain = run_alone(params())
    rig = run_alone(params(stop=(str(plain.tokens(0)[3]),)))
    assert rig.tokens(0) == plain.tokens(0)[:4]
    assert rig.text(0) == "".join(f"{token} " for token in plain.tokens(0)[:3])
    assert rig.finish(0) is FinishReason.STOP


@pytest.mark.parametrize("end", ["length", "eos", "stop string"])
def test_text_that_was_held_back_comes_with_the_end(end: str) -> None:
    tokens = run_alone(params(max_new_tokens=8)).tokens(0)
    sampling = {
        "length": params(max_new_tokens=5),
        "eos": params(stop_token_ids=(tokens[5],)),
        "stop string": params(stop=(str(tokens[5]),)),
    }[end]
    rig = run_alone(sampling, text=NumberText(hold=3))
    assert rig.text(0) == "".join(f"{token} " for token in tokens[:5])


def test_logprobs_come_one_per_token_where_asked_for() -> None:
    rig = Rig()
    rig.submit(make_request(0, [1, 2], params=params(max_new_tokens=3, logprobs=2)))
    rig.submit(make_request(1, [3, 4], params=params(max_new_tokens=3)))
    rig.run()
    with_logprobs = [entry for output in rig.outputs[0, 0] for entry in output.logprobs]
    assert [len(entry.top) for entry in with_logprobs] == [2, 2, 2]
    assert not any(output.logprobs for output in rig.outputs[0, 1])


def test_each_sequence_has_at_most_one_output_a_step() -> None:
    rig = Rig()
    rig.submit(*(make_request(number, prompt(10, number)) for number in range(5)))
    while rig.engine.has_work:
        outputs = rig.step()
        assert len({output.sequence_id for output in outputs}) == len(outputs)


def test_a_sampled_position_counts_the_prompt_and_what_was_sampled() -> None:
    rig = run_alone(params(max_new_tokens=3))
    assert [batch.samples[0].position for batch in rig.executor.batches] == [3, 4, 5]
    assert [len(batch.samples[0].prompt_token_ids) for batch in rig.executor.batches] == [3, 3, 3]


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("page_size", [1, 16])
def test_chunks_and_neighbours_change_nothing(chunk: int, page_size: int) -> None:
    requests = [make_request(number, prompt(5 + 11 * number, number), max_new_tokens=9) for number in range(6)]
    config = EngineConfig(max_step_tokens=32, max_running=4, max_chunk_tokens=chunk)
    rig = Rig(num_slots=16 * 60, page_size=page_size, config=config)
    rig.submit(*requests)
    rig.run()
    for number, request in enumerate(requests):
        assert rig.tokens(number) == answer(list(request.key.token_ids), 9)
    rig.assert_nothing_is_held()


def test_a_step_never_exceeds_its_budget_and_a_chunk_never_its_limit() -> None:
    config = EngineConfig(max_step_tokens=20, max_running=8, max_chunk_tokens=7)
    rig = Rig(config=config)
    rig.submit(*(make_request(number, prompt(50, number)) for number in range(8)))
    rig.run()
    for batch in rig.executor.batches:
        assert batch.num_tokens <= 20
        assert max(batch.qo_indptr[1:] - batch.qo_indptr[:-1]) <= 7


@pytest.mark.parametrize("priority", [0, 1])
def test_sequences_that_decode_are_never_held_up_by_a_long_prompt_however_urgent(priority: int) -> None:
    rig = Rig(config=EngineConfig(max_step_tokens=16, max_running=4, max_chunk_tokens=16))
    rig.submit(make_request(0, prompt(4), max_new_tokens=50))
    rig.step()
    rig.submit(make_request(1, prompt(200, 1), priority=priority))
    rig.run()
    assert rig.is_undisturbed(0)


def test_a_long_prompt_leaves_room_for_a_short_one_behind_it() -> None:
    rig = Rig(config=EngineConfig(max_step_tokens=64, max_running=4, max_chunk_tokens=32))
    rig.submit(make_request(0, prompt(600)), make_request(1, prompt(10, 1), max_new_tokens=1))
    rig.step()
    assert rig.finish(1) is FinishReason.LENGTH


def test_latencies_include_the_forward_pass_that_made_the_token() -> None:
    rig = Rig()

    def half_a_second() -> None:
        rig.now += 0.5

    rig.executor.before_run = half_a_second
    rig.submit(make_request(0, [1, 2], max_new_tokens=3))
    rig.run()
    assert rig.observer.queue_waits == [1.0]
    assert rig.observer.ttfts == [1.5]
    assert rig.observer.gaps == [1.5, 1.5]
    assert rig.observer.e2es == [4.5]
    assert rig.observer.steps == [(2, 1, 0.5), (1, 1, 0.5), (1, 1, 0.5)]


def test_text_that_fails_ends_its_own_sequence_only() -> None:
    class Picky(NumberText):
        def open(self, prompt_token_ids: Int32Array, stop: tuple[str, ...]) -> TextStream:
            if prompt_token_ids[0] == 7:
                raise ValueError("no text for sevens")
            return super().open(prompt_token_ids, stop)

    rig = Rig(text=Picky())
    rig.submit(make_request(0, [7, 8]), make_request(1, [8, 9]))
    rig.run()
    assert rig.failure(0).code.value == "internal"
    assert rig.tokens(1) == answer([8, 9], 4)
    rig.assert_nothing_is_held()


def test_what_neighbours_decode_by_turns_lies_in_runs_of_slots_all_the_same() -> None:
    rig = Rig()
    rig.submit(*(make_request(number, prompt(10, number), max_new_tokens=64) for number in range(4)))
    rig.run()
    last = rig.executor.batches[-1]
    for index in range(last.num_sequences):
        slots = last.kv_indices[last.kv_indptr[index] : last.kv_indptr[index + 1]]
        num_runs = 1 + int((slots[1:] != slots[:-1] + 1).sum())
        assert num_runs <= 3


@pytest.mark.parametrize("length", [1, 2, 60])
def test_an_undisturbed_run_says_what_the_history_alone_implies(length: int) -> None:
    assert answer(prompt(length), 30) == continuation(prompt(length), 30, VOCAB)


def test_all_token_ids_lie_in_the_vocabulary() -> None:
    assert all(0 <= token < VOCAB for token in answer(prompt(20), 50))
