"""From OpenAI's bodies to requests of the pipeline: what is taken, and what is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import GatewayLimits
from gateway.errors import InvalidRequestError, Violation
from gateway.http.asked import Asked, in_their_words
from gateway.http.body import parse_object
from gateway.http.chat_request import read_chat
from gateway.http.completion_request import read_completion
from radixgate.v1 import inference_pb2

HI: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}


def chat(**fields: Any) -> Asked:
    return read_chat({**HI, **fields}, GatewayLimits())


def text(**fields: Any) -> Asked:
    return read_completion({**TEXT, **fields}, GatewayLimits())


def refused(read: Any, **fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    return {violation.field: violation.description for violation in caught.value.violations}


def messages_of(asked: Asked) -> list[tuple[str, str]]:
    (prompt,) = asked.prompts
    assert isinstance(prompt, inference_pb2.ChatPrompt)
    return [(message.role, message.content) for message in prompt.messages]


# ---------------------------------------------------------------------------------------------------------- sampling


def test_every_field_of_sampling_arrives() -> None:
    asked = chat(
        temperature=0.5, top_p=0.9, n=3, stop=["a", "b"], seed=7, presence_penalty=1, frequency_penalty=-1.5,
        max_tokens=9, top_k=5, min_p=0.25, repetition_penalty=1.5, min_tokens=2, ignore_eos=True, stop_token_ids=[1, 2],
        logprobs=True, top_logprobs=4, scope="corpus", priority=-3,
    )  # fmt: skip
    assert asked.common == inference_pb2.GenerateRequest(
        sampling=inference_pb2.SamplingParams(
            temperature=0.5, top_p=0.9, n=3, stop=["a", "b"], seed=7, presence_penalty=1, frequency_penalty=-1.5,
            max_new_tokens=9, top_k=5, min_p=0.25, repetition_penalty=1.5, min_new_tokens=2, ignore_eos=True,
            stop_token_ids=[1, 2], logprobs=4,
        ),
        scope="corpus",
        priority=-3,
    )  # fmt: skip
    assert (asked.n, asked.wants_logprobs, asked.stream) == (3, True, False)


def test_what_is_not_sent_stays_unset() -> None:
    assert chat().common == inference_pb2.GenerateRequest(sampling=inference_pb2.SamplingParams())
    assert chat(temperature=None, stop=None, seed=None).common == chat().common


def test_zero_is_not_the_same_as_unset() -> None:
    sampling = chat(temperature=0, top_logprobs=0, logprobs=True).common.sampling
    assert sampling.HasField("temperature")
    assert sampling.HasField("logprobs")


def test_one_stop_string_is_a_list_of_one() -> None:
    assert list(chat(stop="end").common.sampling.stop) == ["end"]


def test_negative_seeds_keep_their_64_bits() -> None:
    assert chat(seed=-1).common.sampling.seed == 2**64 - 1
    assert "seed" in refused(chat, seed=2**64)


def test_a_text_completion_has_16_tokens_unless_told_otherwise() -> None:
    assert text().common.sampling.max_new_tokens == 16
    assert text(max_tokens=5).common.sampling.max_new_tokens == 5
    assert not chat().common.sampling.HasField("max_new_tokens")


def test_both_names_of_the_most_tokens_are_understood() -> None:
    assert chat(max_completion_tokens=5).common.sampling.max_new_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).common.sampling.max_new_tokens == 5
    assert "max_tokens" in refused(chat, max_completion_tokens=5, max_tokens=6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", True), ("temperature", 10**400), ("n", 1.0), ("n", True), ("n", 2**40),
        ("stop", 5), ("stop", [5]), ("seed", "x"), ("top_k", []), ("max_tokens", "5"), ("stream", 1), ("model", 5),
        ("logprobs", 3), ("scope", 1), ("priority", 0.5), ("ignore_eos", "no"), ("stop_token_ids", [1, "2"]),
        ("messages", "hi"), ("response_format", "json"), ("metadata", []), ("choice", "a"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_its_name(field: str, value: object) -> None:
    faults = refused(chat, **{field: value})
    assert [name.partition("[")[0] for name in faults] == [field]


# -------------------------------------------------------------------------------------------- what nobody can fulfil


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]), ("functions", [{"name": "f"}]),
        ("tool_choice", "required"), ("logit_bias", {"5": 1}), ("audio", {"voice": "x"}), ("modalities", ["audio"]),
        ("store", True), ("service_tier", "flex"), ("prediction", {}), ("reasoning_effort", "high"),
        ("made_up", 1), ("best_of", 2), ("echo", True),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(field: str, value: object) -> None:
    assert list(refused(chat, **{field: value})) == [field]


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "end"), ("best_of", 2), ("messages", []), ("tools", [{}])]
)
def test_what_text_completions_cannot_do_is_refused_by_name(field: str, value: object) -> None:
    assert list(refused(text, **{field: value})) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "u"), ("safety_identifier", "s"), ("metadata", {"a": "b"}), ("store", False), ("service_tier", "auto"),
        ("parallel_tool_calls", True), ("tools", []), ("tool_choice", "auto"), ("logit_bias", {}),
        ("modalities", ["text"]), ("made_up", None),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_taken(field: str, value: object) -> None:
    assert chat(**{field: value}).common == chat().common


@pytest.mark.parametrize("name", ["tenant", "tenant_id", "extra_key", "cache_salt", "adapter_revision", "Radix-Gate"])
@pytest.mark.parametrize("read", [chat, text])
def test_claims_of_identity_are_refused_as_such(read: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**{name: "other"})
    assert caught.value.reason == "IDENTITY_CLAIMED"
    assert caught.value.violations[0].field == name


def test_claims_of_identity_in_metadata_are_refused_too() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(metadata={"tenant": "other"})
    assert caught.value.reason == "IDENTITY_CLAIMED"


def test_many_faults_are_told_at_once_but_not_all_of_a_thousand() -> None:
    assert set(refused(chat, n="x", seed="y", foo=1)) == {"n", "seed", "foo"}
    assert len(refused(chat, **{f"field{i}": 1 for i in range(1000)})) == 16


# ---------------------------------------------------------------------------------------------------------- messages


def test_messages_keep_their_order_and_developers_are_the_system() -> None:
    asked = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    )
    assert messages_of(asked) == [("system", "be brief"), ("user", "ab")]


def test_an_answer_of_ours_can_be_sent_back_as_clients_do() -> None:
    answer = {
        "role": "assistant", "content": "hello", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    assert messages_of(chat(messages=[*HI["messages"], answer]))[1] == ("assistant", "hello")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "messages[0].content[0].x"),
        ({"role": "user", "content": "hi", "name": "bob"}, "messages[0].name"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "tool", "content": "", "tool_call_id": "1"}, "messages[0].tool_call_id"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_its_place(message: object, field: str) -> None:
    assert list(refused(chat, messages=[message])) == [field]


def test_messages_and_model_are_required() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_chat({}, GatewayLimits())
    assert [violation.field for violation in caught.value.violations] == ["model", "messages"]


def test_more_messages_than_allowed_are_not_even_read() -> None:
    assert list(refused(chat, messages=[5] * 5000)) == ["messages"]


# ----------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ([1, 2],)),
        ([[1, 2], [3]], ([1, 2], [3])),
        (["a", [1]], ("a", [1])),
    ],
)
def test_all_kinds_of_prompts_are_read(prompt: object, prompts: tuple[object, ...]) -> None:
    assert text(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (5, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([[1, True]], "prompt[0][1]"),
        ([{}], "prompt[0]"),
        ([2**31], "prompt[0]"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_with_its_place(prompt: object, field: str) -> None:
    assert list(refused(text, prompt=prompt)) == [field]


def test_prompts_times_completions_are_bounded() -> None:
    assert len(text(prompt=["a"] * 32, n=2).prompts) == 32
    assert list(refused(text, prompt=["a"] * 33, n=2)) == ["prompt"]


# ------------------------------------------------------------------------------------------------------- constraints


def test_a_schema_is_held_to_and_an_object_is_any_object() -> None:
    schema = {"type": "object", "properties": {"ä": {"type": "string"}}}
    asked = chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    )
    assert json.loads(asked.common.sampling.json_schema) == schema
    assert chat(response_format={"type": "json_object"}).common.sampling.json_schema == '{"type":"object"}'
    assert chat(response_format={"type": "text"}).common == chat().common


def test_our_own_constraints_are_taken() -> None:
    assert chat(regex="a+").common.sampling.regex == "a+"
    assert list(chat(choice=["a", "b"]).common.sampling.choice.texts) == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], field: str) -> None:
    assert list(refused(chat, **fields)) == [field]


@pytest.mark.parametrize("depth", [50, 500, 900, 20_000])
def test_a_schema_of_any_depth_is_taken_as_it_is_or_refused_for_it(depth: int) -> None:
    schema = b'{"items":' * depth + b"{}" + b"}" * depth
    wanted = b'{"type":"json_schema","json_schema":{"schema":' + schema + b"}}"
    body = json.dumps(HI).encode()[:-1] + b',"response_format":' + wanted + b"}"
    asked, refusal = outcome(read_chat, body)
    if asked is None:
        assert depth > 50
        assert "deeply" in str(refusal)
    else:
        assert depth < 20_000
        assert asked.common.sampling.json_schema.encode() == schema


def outcome(read: Any, body: bytes) -> tuple[Asked | None, InvalidRequestError | None]:
    """Return what was read, or how it was refused; anything else is raised."""
    try:
        return read(parse_object(body), GatewayLimits()), None
    except InvalidRequestError as error:
        return None, error


# ------------------------------------------------------------------------------------------------------ their words


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("sampling.max_new_tokens", "max_completion_tokens"),
        ("sampling.min_new_tokens", "min_tokens"),
        ("sampling.logprobs", "top_logprobs"),
        ("sampling.stop[3]", "stop[3]"),
        ("sampling.json_schema", "response_format"),
        ("chat.messages[2].role", "messages[2].role"),
        ("chat.messages", "messages"),
        ("chat", "messages"),
        ("priority", "priority"),
    ],
)
def test_the_pipeline_s_faults_are_told_in_the_clients_words(ours: str, theirs: str) -> None:
    asked = chat(max_completion_tokens=5)
    told = in_their_words(InvalidRequestError([Violation(ours, "must be at most max_new_tokens")]), asked.names)
    assert told.violations == (Violation(theirs, "must be at most max_completion_tokens"),)


# ------------------------------------------------------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "is empty"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a": 1, "a": 2}', "two fields 'a'"),
        (b'{"a": [{"b": 1, "b": 2}]}', "two fields 'b'"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": "\xff"}', "UTF-8 at byte 7"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
    ],
)
def test_a_body_that_is_no_plain_json_object_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_object(body)
    assert told in caught.value.message


def test_pairs_of_surrogates_are_characters() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


# ---------------------------------------------------------------------------------------------------------- property

_NAMES = [
    "model", "messages", "prompt", "n", "stop", "seed", "temperature", "logprobs", "top_logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options", "response_format", "regex", "choice", "tools", "metadata",
    "scope", "priority", "stop_token_ids", "echo", "best_of", "role", "content", "type", "text", "json_schema",
    "schema", "include_usage", "tenant", "logit_bias", "modalities", "user", "return_token_ids",
]  # fmt: skip
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["user", "text", "json_schema", "json_object", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=3), inner,
                                                                max_size=4),
    max_leaves=12,
)  # fmt: skip
_bodies = st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=4), _values, max_size=8)


@given(body=_bodies, complete=st.booleans(), read=st.sampled_from([read_chat, read_completion]))
def test_any_json_is_a_request_or_a_refusal(body: dict[str, Any], complete: bool, read: Any) -> None:
    base = (HI if read is read_chat else TEXT) if complete else {}
    asked, refusal = outcome(read, json.dumps({**base, **body}).encode())
    if asked is not None:
        assert asked.prompts
        asked.common.SerializeToString()
    else:
        assert refusal is not None
        assert refusal.violations
        assert all(violation.field and violation.description for violation in refusal.violations)
