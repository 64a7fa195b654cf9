"""Completions that were begun elsewhere: what is told and counted of them here, what they find, and how they end."""

from dataclasses import replace

import pytest

from hicache.cache import Hit, PrefixCache
from hicache.keys import PrefixKey, Segment
from hicache.storage.memory import MemoryStore
from metrics.worker import WorkerMetrics
from tests.unit.worker.engine.harness import EOS, TENANT_A, TENANT_B, VOCAB, Rig, make_request, prompt
from tests.unit.worker.engine.tiered_rig import TieredRig
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason, Phase, Request
from worker.engine.branches import branch_seed
from worker.engine.fake import FakeAdapters, NumberText, continuation
from worker.engine.ports import Continued
from worker.errors import FailureCode

PROMPT = prompt(40, seed=3)
N = 4


def truth(index: int = 0, num_tokens: int = 12) -> list[int]:
    return continuation(PROMPT, num_tokens, VOCAB, seed=branch_seed(7, index))


def going_on(had: dict[int, int], number: int = 0, **overrides: object) -> Request:
    """Return a request whose completions go on that are named, each from so many of its tokens."""
    values: dict[str, object] = {"max_new_tokens": 12, "n": N, "seed": 7, "ignore_eos": True, **overrides}
    request = make_request(number, PROMPT, params=SamplingParams(**values))  # type: ignore[arg-type]
    continued = [Continued(index, tuple(truth(index)[:num_tokens])) for index, num_tokens in had.items()]
    return replace(request, continued=tuple(continued))


# What is told and counted


@pytest.mark.parametrize("num_had", [1, 5, 11])
def test_one_that_goes_on_gets_the_rest_and_nothing_else(num_had: int) -> None:
    rig = Rig()
    rig.submit(going_on({0: num_had}))
    rig.run()
    assert rig.tokens(0) == truth()[num_had:]
    assert rig.text(0) == "".join(f"{token} " for token in truth()[num_had:])
    assert rig.finish(0) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_text_that_was_held_back_when_it_was_cut_off_is_told_and_no_other() -> None:
    rig = Rig(text=NumberText(hold=3))
    rig.submit(going_on({0: 5}))
    rig.run()
    assert rig.text(0) == "".join(f"{token} " for token in truth()[2:])


def test_a_row_says_what_it_would_have_said_where_the_request_began() -> None:
    rig = Rig()
    rig.submit(going_on({2: 5}, min_new_tokens=7, ignore_eos=False))
    rig.step()
    (row,) = rig.executor.batches[0].samples
    assert row.position == len(PROMPT) + 5
    assert row.prompt_token_ids.tolist() == PROMPT
    assert row.params.seed == branch_seed(7, 2)
    assert row.banned_token_ids == (EOS,)
    rig.step()
    rig.step()
    assert rig.executor.batches[-1].samples[0].banned_token_ids == ()


def test_those_not_named_have_ended_and_each_of_the_others_goes_on_by_itself() -> None:
    rig = Rig()
    rig.submit(going_on({3: 2, 1: 9}))
    rig.run()
    assert {output.index for output in rig.outputs[0, 0]} == {1, 3}
    assert rig.tokens(0, 1) == truth(1)[9:]
    assert rig.tokens(0, 3) == truth(3)[2:]
    rig.assert_nothing_is_held()


def test_log_probabilities_of_the_prompt_are_not_computed_once_more() -> None:
    rig = Rig()
    rig.submit(going_on({0: 4}, prompt_logprobs=0))
    rig.run()
    assert rig.scores(0) == []
    assert rig.tokens(0) == truth()[4:]
    assert len(rig.executor.batches[0].samples) == 1


def test_each_says_what_was_found_of_all_that_it_came_with() -> None:
    rig = Rig()
    rig.submit(going_on({0: 8, 1: 8}))
    rig.run()
    rig.submit(going_on({0: 10, 2: 3}, number=1))
    rig.run()
    first, second = rig.admission(1, 0), rig.admission(1, 2)
    assert (first.prompt_tokens, first.hit) == (len(PROMPT) + 10, Hit(len(PROMPT) + 9))
    assert (second.prompt_tokens, second.hit) == (len(PROMPT) + 3, Hit(len(PROMPT)))


def test_what_shares_a_prompt_computes_it_once() -> None:
    rig = Rig(config=EngineConfig(max_running=4))
    rig.submit(going_on(dict.fromkeys(range(N), 5)))
    rig.run()
    computed = sum(num_tokens for num_tokens, _, _ in rig.observer.steps)
    assert computed == len(PROMPT) + N * 11  # the last token of each is never computed


def test_an_observer_hears_of_it_apart_from_those_that_begin() -> None:
    rig = Rig()
    rig.submit(going_on({0: 8, 1: 10}))
    rig.run()
    assert rig.observer.admissions == []
    assert rig.observer.continuations == [rig.admission(0, 0), rig.admission(0, 1)]
    assert rig.observer.ttfts == []
    assert len(rig.observer.gaps) == 4 + 2
    assert rig.observer.outcomes == ["length", "length"]


def test_counters_of_prompts_and_hits_stay_as_they_are_and_others_say_what_went_on() -> None:
    metrics = WorkerMetrics("w")
    rig = Rig(observer=metrics)
    rig.submit(going_on({0: 8, 1: 10}))
    rig.run()
    who = {"worker": "w", "tenant": "a", "adapter": ""}

    def counted(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**who, **labels})

    found = sum(rig.admission(0, index).hit.device for index in (0, 1))
    given = 2 * len(PROMPT) + 8 + 10
    assert found == len(PROMPT)
    assert counted("radixgate_continued_sequences_total") == 2
    assert counted("radixgate_continued_tokens_total", source="device") == found
    assert counted("radixgate_continued_tokens_total", source="computed") == given - found
    assert counted("radixgate_completion_tokens_total") == 4 + 2
    for name in ("prompt_tokens", "computed_prompt_tokens"):
        assert counted(f"radixgate_{name}_total") is None
    assert counted("radixgate_cached_tokens_total", tier="device") is None
    assert counted("radixgate_cache_hit_rate") is None


def test_its_timeline_begins_here_and_counts_what_was_sampled_here() -> None:
    rig = Rig()
    rig.submit(going_on({0: 8, 1: 10}))
    rig.run()
    ends = [output for output in rig.outputs[0, 0] if output.timeline is not None]
    timelines = {output.index: output.timeline for output in ends if output.timeline is not None}
    assert [timelines[index].num_tokens for index in (0, 1)] == [4, 2]
    assert [timelines[index].began_at for index in (0, 1)] == [0.0, 0.0]
    assert timelines[0].first_token_at is not None
    assert [each.phase for each in timelines[0].intervals] == [Phase.QUEUE, Phase.MATCH, Phase.PREFILL, Phase.DECODE]
    assert ends[-1].timeline is not None
    assert ends[-1].timeline.is_last


def test_the_last_end_of_a_request_comes_last_whoever_had_news_before() -> None:
    """Completion 0 ends in the step in which the other one is admitted and ends, behind it."""
    rig = Rig()
    rig.submit(going_on({0: 10, 1: 11}))
    rig.run()
    last_step = [output for output in rig.outputs[0, 0] if output.finish is not None]
    assert [output.index for output in last_step] == [0, 1]
    assert rig.token_times[0, 0][-1] == rig.token_times[0, 0][-2]
    assert [output.timeline.is_last for output in last_step if output.timeline is not None] == [False, True]


# What it finds


def test_what_it_has_is_found_in_its_own_namespace_behind_a_public_prefix() -> None:
    public, own = PROMPT[:30], PROMPT[30:]
    rig = Rig()
    request = going_on({0: 6}, n=1)
    key = PrefixKey((Segment(TENANT_B, public), Segment(TENANT_A, own)))
    rig.submit(replace(request, key=key, continued=()))
    rig.run()
    rig.submit(replace(request, key=key, sequence_id=(0, 1)))
    rig.submit(replace(request, key=PrefixKey.of(TENANT_B, PROMPT), sequence_id=(0, 2)))
    rig.run()
    assert rig.tokens(1) == truth()[6:]
    assert rig.admission(1).hit.total == len(PROMPT) + 5
    assert rig.admission(2).hit.total == len(public)


def test_storage_brings_what_another_worker_has_left_there() -> None:
    store = MemoryStore(1 << 20)
    other = TieredRig(store=store)
    other.submit(replace(going_on({}, n=1), continued=()))
    other.serve_all()
    other.save()
    rig = TieredRig(store=store)
    rig.submit(going_on({0: 8}, n=1))
    rig.serve_all()
    assert rig.admission(0).hit.storage == len(PROMPT) + 4  # whole pages of 4, and at least one token is computed
    assert rig.tokens(0) == truth()[8:]
    rig.settle()
    rig.assert_nothing_is_left()


def test_one_that_was_paused_goes_on_once_more() -> None:
    rig = Rig(num_slots=64, config=EngineConfig(headroom_tokens=1, max_running=8))
    rig.submit(going_on(dict.fromkeys(range(N), 2)))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert len(rig.observer.continuations) == N
    for index in range(N):
        assert rig.tokens(0, index) == truth(index)[2:]
    rig.assert_nothing_is_held()


def test_its_adapter_is_the_requests_and_has_it_as_a_user() -> None:
    rig = Rig(adapters=FakeAdapters(1))
    rig.engine.add_adapter("r1")
    key = PrefixKey.of(replace(TENANT_A, adapter_revision="r1"), PROMPT)
    tokens = continuation(PROMPT, 12, VOCAB, "r1", seed=7)
    request = replace(going_on({0: 5}), key=key, continued=(Continued(0, tuple(tokens[:5])),))
    rig.submit(request)
    rig.step()
    assert [state.users for state in rig.engine.adapters()] == [1]
    rig.run()
    assert rig.tokens(0) == tokens[5:]
    assert [state.users for state in rig.engine.adapters()] == [0]


# Its place among others


def test_it_starts_before_new_ones_of_its_tenant() -> None:
    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(1, prompt(9)), make_request(2, prompt(5)))
    rig.submit(going_on({0: 5}))
    rig.run()
    assert rig.token_times[0, 0][0] < min(rig.token_times[0, 1][0], rig.token_times[0, 2][0])


def test_only_those_that_go_on_take_room() -> None:
    rig = Rig(config=EngineConfig(max_running=1, max_waiting=1))
    rig.submit(going_on({0: 5, 3: 5}), make_request(1, prompt(9)))
    rig.run()
    assert [rig.finish(0, index) for index in (0, 3)] == [FinishReason.LENGTH] * 2
    assert rig.failure(1).code is FailureCode.OVERLOADED


def test_it_never_gives_way_for_others() -> None:
    rig = Rig(config=EngineConfig(max_running=1, max_waiting=3))
    rig.submit(*(going_on({0: 5}, number=number, n=1) for number in range(4)))
    rig.submit(make_request(4, prompt(9), namespace=TENANT_B, tenant="b"))
    rig.run()
    assert [rig.finish(number) for number in range(4)] == [FinishReason.LENGTH] * 4
    assert rig.failure(4).code is FailureCode.OVERLOADED


# Ends


@pytest.mark.parametrize("steps", range(4))
def test_a_cancel_ends_all_of_them_whenever_it_comes(steps: int) -> None:
    rig = Rig(config=EngineConfig(max_running=2, max_chunk_tokens=16))
    rig.submit(going_on({0: 1, 1: 2, 3: 3}), make_request(1, prompt(5)))
    for _ in range(steps):
        rig.step()
    rig.engine.cancel((0, 0), rig.now)
    rig.step()
    assert {rig.failure(0, index).code for index in (0, 1, 3)} == {FailureCode.CANCELLED}
    rig.run()
    assert rig.finish(1) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_a_deadline_ends_all_of_them() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(replace(going_on({0: 1, 1: 1, 2: 1}), deadline=5.0))
    rig.run()
    assert {rig.failure(0, index).code for index in (0, 1, 2)} == {FailureCode.DEADLINE_EXCEEDED}
    rig.assert_nothing_is_held()


def test_a_forward_pass_that_fails_ends_all_of_them() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.executor.break_in = {2}
    rig.submit(going_on({0: 1, 1: 1, 2: 1}))
    rig.run()
    assert {rig.failure(0, index).code for index in (0, 1, 2)} == {FailureCode.INTERNAL}
    rig.assert_nothing_is_held()


class TiredCache(PrefixCache):
    """Asks storage for a prefix no more than so many times."""

    patience = 1

    def prefetch(self, *args: object, **options: object) -> None:
        self.patience -= 1
        if self.patience < 0:
            raise OSError("no more")


def test_a_request_of_which_one_completion_can_not_be_taken_in_was_never_here() -> None:
    rig = Rig(cache=lambda executor: TiredCache(len(executor.contents)))
    with pytest.raises(OSError, match="no more"):
        rig.submit(going_on({0: 1, 1: 1}))
    assert not rig.engine.has_work
    rig.assert_nothing_is_held()
