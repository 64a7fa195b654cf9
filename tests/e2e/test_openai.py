"""The `openai` package against the whole product with a real model: the same answers as over gRPC, token for token."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Answer, Client, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

QUESTION = "Name three rivers of Europe, and an emoji for each."
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
IDS: Any = {"return_token_ids": True}
# In our words, and in OpenAI's.
SAMPLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 0.9, "seed": 11, "top_p": 0.9}, {"temperature": 0.9, "seed": 11, "top_p": 0.9}),
    (
        {"temperature": 1.2, "seed": 2**63 - 1, "top_k": 20, "repetition_penalty": 1.1, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 2**63 - 1, "presence_penalty": 0.5,
         "extra_body": {"top_k": 20, "repetition_penalty": 1.1}},
    ),
]  # fmt: skip


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key=stack.keys["demo-a"], max_retries=0) as made:
        yield made


def over_grpc(alice: Client, **sampling: Any) -> Answer:
    return alice.generate(
        inference_pb2.GenerateRequest(
            chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(**message) for message in MESSAGES]),
            sampling=inference_pb2.SamplingParams(**sampling),
        )
    )


def model_of(client: Any) -> str:
    return str(next(iter(client.models.list())).id)


@pytest.mark.parametrize(("ours", "theirs"), SAMPLINGS)
def test_chats_are_answered_as_over_grpc(
    alice: Client, client: Any, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    same = over_grpc(alice, max_new_tokens=24, **ours)
    asked: dict[str, Any] = {"model": model_of(client), "messages": MESSAGES, "max_tokens": 24, **theirs}
    asked["extra_body"] = {**asked.get("extra_body", {}), **IDS}

    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]

    assert whole.choices[0].token_ids == same.token_ids
    assert whole.choices[0].message.content == same.text
    assert [each for choice in choices for each in getattr(choice, "token_ids", ())] == same.token_ids
    assert "".join(choice.delta.content or "" for choice in choices) == same.text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == same.usage.prompt_tokens == chunks[-1].usage.prompt_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens == same.usage.prompt_tokens - 1


def test_several_completions_are_those_of_grpc(alice: Client, client: Any) -> None:
    sampling: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 1.0}
    request = inference_pb2.GenerateRequest(
        text="Once upon a time", sampling=inference_pb2.SamplingParams(max_new_tokens=12, **sampling)
    )
    same: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for message in alice.stream(request):
        same[message.index] += message.token_ids
    answer = client.completions.create(
        model=model_of(client), prompt="Once upon a time", max_tokens=12, n=3, seed=5, temperature=1.0, extra_body=IDS
    )
    assert {choice.index: choice.token_ids for choice in answer.choices} == same


def test_log_probabilities_are_those_of_grpc_and_spell_the_text(alice: Client, client: Any) -> None:
    same = over_grpc(alice, max_new_tokens=24, temperature=0, logprobs=3)
    answer = client.chat.completions.create(
        model=model_of(client), messages=MESSAGES, max_tokens=24, temperature=0, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in same.logprobs]
    assert b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace").startswith(same.text.rstrip("�"))
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token  # greedy: the likeliest was taken
        assert len({top.token for top in entry.top_logprobs}) == 3


def test_a_stop_string_ends_the_text_before_it(client: Any) -> None:
    asked: dict[str, Any] = {"model": model_of(client), "prompt": "1, 2, 3, 4, 5,", "max_tokens": 40, "temperature": 0}
    free = client.completions.create(**asked).choices[0]
    stop = free.text[len(free.text) // 2 :][:4]
    cut = client.completions.create(**asked, stop=stop).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: free.text.index(stop)]


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
def test_answers_are_held_to_their_format(client: Any, kind: str) -> None:
    schema = {
        "type": "object",
        "properties": {"river": {"type": "string", "maxLength": 12}, "countries": {"type": "integer"}},
        "required": ["river", "countries"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": kind}
    if kind == "json_schema":
        wanted["json_schema"] = {"name": "river", "strict": True, "schema": schema}
    answer = client.chat.completions.create(
        model=model_of(client), messages=MESSAGES, max_tokens=120, temperature=0, response_format=wanted
    ).choices[0]
    if kind == "json_schema":
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.message.content or ""), schema)
    else:
        assert (answer.message.content or "").lstrip().startswith("{")


def test_a_schema_that_cannot_be_held_to_is_refused_with_its_field(client: Any) -> None:
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
    }
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model_of(client), messages=MESSAGES, response_format=wanted)
    assert caught.value.param == "response_format"


def test_an_adapter_is_a_model_of_its_own(alice: Client, client: Any) -> None:
    base = model_of(client)
    assert [model.id for model in client.models.list()] == [base, f"{base}:pirate"]
    same = alice.generate(
        inference_pb2.GenerateRequest(
            adapter="pirate",
            chat=inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(**message) for message in MESSAGES]),
            sampling=inference_pb2.SamplingParams(max_new_tokens=12, temperature=0),
        )
    )
    answer = client.chat.completions.create(
        model=f"{base}:pirate", messages=MESSAGES, max_tokens=12, temperature=0, extra_body=IDS
    )
    assert answer.choices[0].token_ids == same.token_ids


def test_errors_are_the_exceptions_that_users_know(stack: Stack, client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model_of(client), messages=MESSAGES, max_tokens=10_000_000)
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key="rg_nobody", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
