from typing import Any

import numpy as np
import pytest

from hicache.cache import Hit
from hicache.keys import Namespace
from radixgate.v1 import inference_pb2, worker_pb2
from worker.batch import TokenLogprobs
from worker.engine.ports import Admission, Continued, FinishReason, Request, SequenceId, SequenceOutput
from worker.errors import Failure, FailureCode
from worker.grammar.constraints import Choice, JsonSchema, Regex, TextConstraint, field_of
from worker.rpc import translate
from worker.rpc.translate import RefusedSubmit, output_message

KEY = bytes(range(16))


class Poet:
    """The adapters of a worker that has one, of one tenant."""

    def has(self, name: str, revision: str, tenant: str) -> bool:
        return (name, revision, tenant) == ("poet", "r1", "acme")


def request_from(message: worker_pb2.Submit, sequence_id: SequenceId, now: float) -> Request:
    return translate.request_from(message, sequence_id, now, Poet())


def submit(**changes: Any) -> worker_pb2.Submit:
    fields: dict[str, Any] = {
        "sequence_id": 7,
        "request_id": "r-7",
        "prompt": [worker_pb2.PromptSegment(extra_key=KEY, token_ids=[1, 2, 3])],
        "tenant": "acme",
        "sampling": inference_pb2.SamplingParams(max_new_tokens=5),
    }
    return worker_pb2.Submit(**(fields | changes))


def refusal(message: worker_pb2.Submit) -> Failure:
    with pytest.raises(RefusedSubmit) as refused:
        request_from(message, (1, 7), now=0.0)
    return refused.value.failure


def test_a_submit_becomes_a_request_in_its_namespace() -> None:
    request = request_from(submit(timeout_ms=1500, priority=2), (1, 7), now=10.0)

    assert request.sequence_id == (1, 7)
    assert [segment.namespace for segment in request.key.segments] == [Namespace(KEY)]
    assert np.array_equal(request.key.token_ids, [1, 2, 3])
    assert (request.tenant, request.deadline, request.priority) == ("acme", 11.5, 2)


def test_completions_that_go_on_arrive_with_their_tokens() -> None:
    message = submit(
        sampling=inference_pb2.SamplingParams(max_new_tokens=5, n=3),
        continued=[
            worker_pb2.ContinuedCompletion(index=2, token_ids=[7, 8]),
            worker_pb2.ContinuedCompletion(token_ids=[9]),
        ],
    )
    request = request_from(message, (1, 7), now=0.0)

    assert request.continued == (Continued(2, (7, 8)), Continued(0, (9,)))
    assert request.num_completions == translate.num_completions(message) == 2


def test_without_any_that_goes_on_all_completions_are_to_come() -> None:
    message = submit(sampling=inference_pb2.SamplingParams(max_new_tokens=5, n=3))

    assert request_from(message, (1, 7), now=0.0).num_completions == translate.num_completions(message) == 3


@pytest.mark.parametrize(("sent", "weight"), [(0.0, 1.0), (0.5, 0.5), (3.0, 3.0)])
def test_a_tenants_weight_arrives_and_is_one_if_it_is_not_set(sent: float, weight: float) -> None:
    assert request_from(submit(weight=sent), (1, 7), now=0.0).weight == weight


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e-30, 1e30, 1e-4, 1e4])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    assert refusal(submit(weight=weight)).field == "weight"


def test_without_a_timeout_there_is_no_deadline() -> None:
    assert request_from(submit(), (1, 7), now=10.0).deadline is None


def test_unset_sampling_fields_take_their_documented_defaults() -> None:
    params = request_from(submit(), (1, 7), now=0.0).params

    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert params.logprobs is None


def test_set_sampling_fields_arrive() -> None:
    sampling = inference_pb2.SamplingParams(
        max_new_tokens=5, temperature=0, top_k=3, top_p=0.5, min_p=0.25, repetition_penalty=2, presence_penalty=1,
        frequency_penalty=0.5, seed=2**64 - 1, stop=["a", "b"], stop_token_ids=[4], ignore_eos=True,
        min_new_tokens=2, logprobs=0,
    )  # fmt: skip
    params = request_from(submit(sampling=sampling), (1, 7), now=0.0).params

    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 3, 0.5, 0.25)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (2.0, 1.0, 0.5)
    assert (params.seed, params.stop, params.stop_token_ids) == (2**64 - 1, ("a", "b"), (4,))
    assert (params.ignore_eos, params.min_new_tokens, params.logprobs) == (True, 2, 0)


@pytest.mark.parametrize("extra_key", [b"", KEY[:15], KEY + b"x"], ids=["none", "short", "long"])
def test_a_segment_without_a_whole_extra_key_is_refused(extra_key: bytes) -> None:
    good = worker_pb2.PromptSegment(extra_key=KEY, token_ids=[1])
    bad = worker_pb2.PromptSegment(extra_key=extra_key, token_ids=[1])

    failure = refusal(submit(prompt=[good, bad]))

    assert failure.code is FailureCode.INVALID_ARGUMENT
    assert failure.field == "prompt[1].extra_key"
    assert "16 bytes" in failure.message


def test_a_prompt_without_a_segment_is_refused() -> None:
    assert refusal(submit(prompt=[])).field == "prompt"


def test_two_segments_of_one_namespace_are_refused() -> None:
    segment = worker_pb2.PromptSegment(extra_key=KEY, token_ids=[1])
    failure = refusal(submit(prompt=[segment, segment]))

    assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENT, "prompt")


def test_an_adapter_that_is_not_loaded_is_not_found() -> None:
    failure = refusal(submit(adapter="painter", adapter_revision="r1"))

    assert (failure.code, failure.field) == (FailureCode.NOT_FOUND, "adapter")
    assert "painter" in failure.message


def test_a_request_for_an_adapter_computes_and_is_cached_under_its_revision() -> None:
    segments = [worker_pb2.PromptSegment(extra_key=key, token_ids=[1, 2]) for key in (KEY, bytes(16))]
    request = request_from(submit(prompt=segments, adapter="poet", adapter_revision="r1"), (1, 7), now=0.0)

    assert (request.adapter, request.adapter_revision) == ("poet", "r1")
    assert [segment.namespace.adapter_revision for segment in request.key.segments] == ["r1", "r1"]


@pytest.mark.parametrize(
    "changes", [{"adapter_revision": "r2"}, {"tenant": "other"}], ids=["other revision", "other tenant"]
)
def test_an_adapter_of_others_is_refused_in_the_words_for_one_that_is_not_there(changes: dict[str, str]) -> None:
    missing = refusal(submit(adapter="poem", adapter_revision="r1"))
    named = {"adapter": "poet", "adapter_revision": "r1", **changes}

    failure = refusal(submit(**named))

    assert failure == Failure(missing.code, missing.message.replace("poem", "poet"), missing.field)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"adapter": "poet"}, "adapter_revision"), ({"adapter_revision": "r1"}, "adapter")],
    ids=["name alone", "revision alone"],
)
def test_half_an_adapter_is_refused(changes: dict[str, str], missing: str) -> None:
    failure = refusal(submit(**changes))

    assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENT, missing)


def test_news_of_a_sequence_carries_the_gateways_own_id() -> None:
    output = SequenceOutput(
        sequence_id=(3, 7),
        token_ids=(5, 6),
        text="hi",
        logprobs=(TokenLogprobs(-0.5, ((5, -0.5), (9, -1.0))), TokenLogprobs(-0.25, ())),
        admission=Admission(prompt_tokens=10, hit=Hit(device=4, host=3, storage=2)),
        finish=FinishReason.LENGTH,
    )
    message = output_message(output)

    assert (message.sequence_id, list(message.token_ids), message.text) == (7, [5, 6], "hi")
    assert message.admission.prompt_tokens == 10
    cached = message.admission.cached
    assert (cached.device, cached.host, cached.storage) == (4, 3, 2)
    assert [(top.token_id, top.logprob) for top in message.logprobs[0].top] == [(5, -0.5), (9, -1.0)]
    assert message.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert message.WhichOneof("end") == "finish_reason"


@pytest.mark.parametrize("code", list(FailureCode))
def test_every_failure_has_a_code_on_the_wire(code: FailureCode) -> None:
    message = output_message(SequenceOutput(sequence_id=(0, 1), finish=Failure(code, "why", "where")))

    name = worker_pb2.SequenceErrorCode.Name(message.error.code)
    assert name == f"SEQUENCE_ERROR_CODE_{code.name}"
    assert (message.error.message, message.error.field) == ("why", "where")


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_finish_reason_has_a_code_on_the_wire(reason: FinishReason) -> None:
    message = output_message(SequenceOutput(sequence_id=(0, 1), finish=reason))

    assert inference_pb2.FinishReason.Name(message.finish_reason) == f"FINISH_REASON_{reason.name}"


def test_several_completions_and_scores_of_the_prompt_arrive_and_are_off_by_default() -> None:
    plain = request_from(submit(), (1, 7), now=0.0).params
    assert (plain.n, plain.prompt_logprobs) == (1, None)
    sampling = inference_pb2.SamplingParams(max_new_tokens=5, n=4, prompt_logprobs=0)
    params = request_from(submit(sampling=sampling), (1, 7), now=0.0).params
    assert (params.n, params.prompt_logprobs) == (4, 0)


@pytest.mark.parametrize(
    ("sent", "constraint"),
    [
        ({}, None),
        ({"json_schema": "{}"}, JsonSchema("{}")),
        ({"regex": "a+"}, Regex("a+")),
        ({"choice": {"texts": ["a", "b"]}}, Choice(("a", "b"))),
    ],
)
def test_a_constraint_arrives(sent: dict[str, Any], constraint: TextConstraint | None) -> None:
    assert translate.constraint_of(inference_pb2.SamplingParams(**sent)) == constraint
    assert constraint is None or field_of(constraint) == f"sampling.{next(iter(sent))}"


def test_news_say_which_completion_they_are_of_and_what_the_prompt_scored() -> None:
    scores = (TokenLogprobs(-1.5, ((7, -0.5),)),)
    message = translate.output_message(SequenceOutput((1, 7), (5,), index=3, prompt_logprobs=scores))
    assert (message.sequence_id, message.index) == (7, 3)
    assert [(entry.logprob, entry.top[0].token_id) for entry in message.prompt_logprobs] == [(-1.5, 7)]
