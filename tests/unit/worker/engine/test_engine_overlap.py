"""What happens beside a forward pass, and what has to wait for it."""

from collections.abc import Sequence

import pytest

from tests.unit.worker.engine.harness import EOS, Recorder, Rig, answer, make_request, prompt
from worker.batch import Batch, Int32Array, PendingStep, SamplingParams, TextDelta, TextStream
from worker.config import EngineConfig
from worker.engine import DuplicateSequenceError, FinishReason, SequenceOutput
from worker.engine.fake import NumberText
from worker.errors import Failure, FailureCode


class WatchedText(NumberText):
    """Counts the tokens that became text; fails at the tokens it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0
        self.fails_after: int | None = None

    def open(self, prompt_token_ids: Int32Array, stop: tuple[str, ...]) -> TextStream:
        return _WatchedStream(self, super().open(prompt_token_ids, stop))


class _WatchedStream:
    def __init__(self, text: WatchedText, inner: TextStream) -> None:
        self._text = text
        self._inner = inner

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        if self._text.num_tokens == self._text.fails_after:
            raise ValueError("no text any more")
        self._text.num_tokens += len(token_ids)
        return self._inner.push(token_ids)

    def flush(self) -> str:
        return self._inner.flush()


class FaultyCounts(Recorder):
    def next_token(self, tenant: str, adapter: str, gap_s: float) -> None:
        raise RuntimeError("the observer's fault")

    def finished(self, tenant: str, adapter: str, outcome: str, output_tokens: int, e2e_s: float) -> None:
        super().finished(tenant, adapter, outcome, output_tokens, e2e_s)
        raise RuntimeError("the observer's fault")


class NoStart:
    """Cannot even start a pass."""

    def __init__(self, executor: object) -> None:
        pass

    def start(self, batch: Batch) -> PendingStep:
        raise RuntimeError("out of order")


def begin(rig: Rig) -> None:
    rig.now += 1.0
    rig.engine.begin(rig.now)


def keep(rig: Rig, outputs: list[SequenceOutput]) -> None:
    for output in outputs:
        rig.outputs.setdefault(output.sequence_id, []).append(output)


def finish(rig: Rig) -> None:
    """Complete the step under way and let everybody come to an end."""
    rig.engine.complete()
    rig.beside = lambda: None
    rig.run()


def test_overlapped_steps_say_what_serial_ones_say() -> None:
    requests = [make_request(number, prompt(5 + 11 * number, number), max_new_tokens=9) for number in range(6)]
    rig = Rig(config=EngineConfig(max_step_tokens=32, max_running=4, max_chunk_tokens=7))
    rig.beside = lambda: None
    rig.submit(*requests)
    rig.run()
    for number, request in enumerate(requests):
        assert rig.tokens(number) == answer(list(request.key.token_ids), 9)
        assert rig.text(number) == "".join(f"{token} " for token in rig.tokens(number))
        assert rig.finish(number) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_the_news_of_a_step_are_ready_when_it_is_complete() -> None:
    rig = Rig()
    rig.submit(make_request(0, [1, 2, 3]))
    begin(rig)
    rig.engine.take_outputs()
    rig.engine.complete()
    [first] = rig.engine.take_outputs()
    assert first.token_ids == tuple(answer([1, 2, 3], 1))
    assert first.text == f"{first.token_ids[0]} "


def test_text_that_decides_nothing_waits_until_the_next_pass_is_under_way() -> None:
    text = WatchedText()
    rig = Rig(text=text)
    rig.submit(make_request(0), make_request(1, [4, 5]))
    for num_told in (0, 0, 2, 4):
        begin(rig)
        assert text.num_tokens == num_told
        rig.engine.take_outputs()
        num_beside = text.num_tokens
        rig.engine.complete()
        assert text.num_tokens == num_beside
    assert num_beside == 6


def test_who_ends_with_a_stop_string_is_no_part_of_the_next_pass() -> None:
    stop = str(answer([1, 2, 3], 3)[-1])
    rig = Rig()
    rig.beside = lambda: None
    params = SamplingParams(max_new_tokens=20, temperature=0.0, ignore_eos=True, stop=(stop,))
    rig.submit(make_request(0, [1, 2, 3], params=params))
    rig.run()
    assert rig.executor.num_runs == 3
    assert rig.finish(0) is FinishReason.STOP
    assert stop not in rig.text(0).split()


def test_who_ends_with_an_end_token_gives_its_slots_to_the_next_step() -> None:
    rig = Rig(eos_token_ids=(answer([1, 2, 3], 2)[-1], EOS))
    rig.submit(make_request(0, [1, 2, 3], params=SamplingParams(max_new_tokens=20, temperature=0.0)))
    for _ in range(2):
        begin(rig)
        rig.engine.complete()
    assert rig.engine.load().running == 0
    [output] = rig.engine.take_outputs()
    assert output.finish is FinishReason.STOP
    assert len(output.token_ids) == 2


def test_a_cancel_beside_a_pass_takes_effect_when_that_has_ended() -> None:
    rig = Rig()
    rig.submit(make_request(0, max_new_tokens=50), make_request(1, [4, 5], max_new_tokens=3))
    rig.step()
    begin(rig)
    rig.engine.cancel((0, 0), rig.now)
    rig.engine.cancel((0, 0), rig.now)
    assert rig.engine.load().running == 2
    rig.engine.check()
    rig.engine.complete()
    assert rig.engine.load().running == 1
    keep(rig, rig.engine.take_outputs())
    assert rig.failure(0).code is FailureCode.CANCELLED
    assert len(rig.tokens(0)) == 1, "the token of the pass is not handed out any more"
    rig.run()
    assert rig.tokens(1) == answer([4, 5], 3)
    assert sorted(rig.observer.outcomes) == ["cancelled", "length"]
    rig.assert_nothing_is_held()


def test_a_cancel_beside_a_pass_ends_those_at_once_who_have_no_part_in_it() -> None:
    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(0), make_request(1, [4, 5]))
    begin(rig)
    rig.engine.cancel((0, 1), rig.now)
    assert rig.engine.load().waiting == 0
    finish(rig)
    assert rig.failure(1).code is FailureCode.CANCELLED
    assert rig.tokens(0) == answer([1, 2, 3], 4)


def test_who_is_cancelled_beside_a_pass_that_fails_ends_once() -> None:
    rig = Rig()
    rig.executor.break_in = {1}
    rig.submit(make_request(0))
    begin(rig)
    rig.engine.cancel((0, 0), rig.now)
    finish(rig)
    assert isinstance(rig.finish(0), Failure)
    assert len(rig.observer.outcomes) == 1
    rig.assert_nothing_is_held()


def test_a_request_that_comes_beside_a_pass_is_part_of_the_next_step() -> None:
    rig = Rig()
    rig.submit(make_request(0))
    begin(rig)
    rig.submit(make_request(1, [4, 5]))
    rig.engine.complete()
    begin(rig)
    assert rig.engine.load().running == 2
    finish(rig)
    assert rig.tokens(1) == answer([4, 5], 4)


def test_text_that_fails_beside_a_pass_ends_its_sequence_after_it() -> None:
    text = WatchedText()
    rig = Rig(text=text)
    rig.submit(make_request(0, max_new_tokens=9))
    rig.beside = lambda: None
    text.fails_after = 2
    rig.run()
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert len(rig.tokens(0)) == 3, "the token without text is told, the one of the pass under way is not"
    assert rig.observer.outcomes == ["internal"]
    rig.assert_nothing_is_held()


def test_nothing_is_told_behind_the_token_whose_text_failed() -> None:
    text = WatchedText()
    text.fails_after = 0
    rig = Rig(text=text)
    rig.submit(make_request(0, max_new_tokens=9))
    for _ in range(2):
        begin(rig)
        rig.engine.complete()
    keep(rig, rig.engine.take_outputs())
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert (len(rig.tokens(0)), rig.text(0)) == (1, "")
    rig.assert_nothing_is_held()


def test_text_that_fails_with_the_last_token_makes_the_end_a_failure() -> None:
    text = WatchedText()
    text.fails_after = 3
    rig = Rig(text=text)
    rig.submit(make_request(0, max_new_tokens=4))
    rig.run()
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert rig.observer.outcomes == ["internal"]


def test_an_id_whose_end_is_not_told_yet_cannot_be_taken() -> None:
    rig = Rig()
    rig.submit(make_request(0, max_new_tokens=1))
    begin(rig)
    rig.engine.complete()
    assert rig.engine.load().running == 0
    assert rig.engine.has_work
    with pytest.raises(DuplicateSequenceError):
        rig.submit(make_request(0))
    rig.engine.take_outputs()
    rig.submit(make_request(0))


def test_an_observer_that_raises_takes_nobody_s_answer_away() -> None:
    rig = Rig(observer=FaultyCounts())
    rig.submit(make_request(0), make_request(1, [4, 5]))
    rig.run()
    assert rig.tokens(0) == answer([1, 2, 3], 4)
    assert rig.finish(0) is rig.finish(1) is FinishReason.LENGTH


def test_a_pass_that_cannot_be_started_fails_its_sequences() -> None:
    rig = Rig(running=NoStart)
    rig.submit(make_request(0))
    rig.run()
    assert rig.failure(0).code is FailureCode.INTERNAL
    rig.assert_nothing_is_held()


def test_an_abort_waits_for_the_pass_under_way() -> None:
    rig = Rig()
    rig.submit(make_request(0), make_request(1, [4, 5]))
    rig.step()
    running_then: list[int] = []
    rig.executor.before_run = lambda: running_then.append(rig.engine.load().running)
    begin(rig)
    rig.engine.abort(Failure(FailureCode.SHUTTING_DOWN, "bye"), rig.now)
    assert running_then == [2]
    keep(rig, rig.engine.take_outputs())
    assert rig.failure(0).code is rig.failure(1).code is FailureCode.SHUTTING_DOWN
    rig.assert_nothing_is_held()


def test_latencies_count_when_a_token_is_known_not_when_it_is_told() -> None:
    rig = Rig()
    rig.beside = lambda: None
    rig.submit(make_request(0, max_new_tokens=3))
    rig.run()
    assert rig.observer.ttfts == [1.0]
    assert rig.observer.gaps == [1.0, 1.0]
    assert rig.observer.e2es == [3.0]
