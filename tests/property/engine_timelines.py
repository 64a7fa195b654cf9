"""What the timelines of an engine's completions owe whoever reads them, whatever happened."""

import pytest

from tests.unit.worker.engine.harness import Rig
from worker.engine import Phase, Request, SequenceOutput, Timeline

AFTER = {
    Phase.QUEUE: {Phase.MATCH},
    Phase.MATCH: {Phase.LOAD, Phase.PREFILL, Phase.DECODE, Phase.PAUSE},
    Phase.LOAD: {Phase.PREFILL, Phase.DECODE, Phase.PAUSE},
    Phase.PREFILL: {Phase.DECODE, Phase.PAUSE},
    Phase.DECODE: {Phase.PAUSE},
    Phase.PAUSE: {Phase.MATCH},
}


def assert_true_timelines(rig: Rig, requests: dict[int, Request], submitted: dict[int, float]) -> list[Timeline]:
    """Hold every end of `rig` to its promises; `submitted` says when. Return the timelines."""
    going_on = {number for number, request in requests.items() if request.continued}
    ends = [output for outputs in rig.outputs.values() for output in outputs if output.finish is not None]
    timelines = [output.timeline for output in ends if output.timeline is not None]
    assert len(timelines) == len(ends), "an end without a timeline"
    for output in ends:
        number = output.sequence_id[1]
        _assert_true(rig, output, submitted[number], is_born=output.index > 0 and number not in going_on)
    for outputs in rig.outputs.values():
        last = [output.timeline.is_last for output in outputs if output.timeline is not None]
        assert last == [False] * (len(last) - 1) + [True], "the last of a request's completions is another one"
    assert sum(each.num_pauses for each in timelines) == rig.observer.num_pauses
    # What is measured of them agrees with what the observer was told, all in all.
    e2e = [end.timeline.ended_at - submitted[end.sequence_id[1]] for end in ends if end.timeline is not None]
    assert sorted(e2e) == pytest.approx(sorted(rig.observer.e2es))
    ttfts = [
        end.timeline.first_token_at - submitted[end.sequence_id[1]]
        for end in ends
        if end.timeline is not None
        and end.timeline.first_token_at is not None
        and rig.tokens(end.sequence_id[1], end.index)  # else its first token broke its constraint: nobody was told
        and end.sequence_id[1] not in going_on  # the first token of these was told where they began
    ]
    assert sorted(ttfts) == pytest.approx(sorted(rig.observer.ttfts))
    return timelines


def _assert_true(rig: Rig, output: SequenceOutput, submitted_at: float, *, is_born: bool) -> None:
    timeline, number = output.timeline, output.sequence_id[1]
    assert timeline is not None
    whole = timeline.ended_at - timeline.began_at
    assert sum(timeline.seconds.values()) == pytest.approx(whole)
    assert timeline.began_at == (timeline.first_token_at if is_born else submitted_at)
    assert timeline.num_tokens >= len(rig.tokens(number, output.index))  # what is told has been sampled
    assert (timeline.first_token_at is not None) == (timeline.num_tokens > 0)
    _assert_seamless(timeline)
    if not timeline.num_omitted:
        phases = [interval.phase for interval in timeline.intervals]
        assert phases.count(Phase.PAUSE) == timeline.num_pauses
        assert phases[0] is Phase.QUEUE
        assert timeline.intervals[-1].end == timeline.ended_at
        for phase, seconds in timeline.seconds.items():
            own = sum(each.end - each.start for each in timeline.intervals if each.phase is phase)
            assert own == pytest.approx(seconds)
    if Phase.DECODE in timeline.seconds and not is_born and timeline.num_pauses == 0:
        (decode,) = [each for each in timeline.intervals if each.phase is Phase.DECODE]
        assert decode.start == timeline.first_token_at
    if timeline.prefetched_at is not None:
        assert timeline.began_at <= timeline.prefetched_at <= timeline.ended_at


def _assert_seamless(timeline: Timeline) -> None:
    at, before = timeline.began_at, None
    for interval in timeline.intervals:
        assert interval.start == at
        assert interval.end >= interval.start
        assert before is None or interval.phase in AFTER[before], f"{interval.phase} after {before}"
        at, before = interval.end, interval.phase
