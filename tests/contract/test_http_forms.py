"""What every form of an OpenAI answer, whole or streamed, has to say about what the pipeline has generated."""

import json
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest

from gateway.errors import InvalidRequestError
from gateway.http.answers import Answer, Heading, StreamedAnswer, WholeAnswer
from gateway.http.asked import Asked
from gateway.http.forms import ChatForm, Completion, Form, MakeForm, TextForm
from gateway.http.reply import Reply
from radixgate.v1 import inference_pb2

Message = inference_pb2.GenerateResponse
FORMS = pytest.mark.parametrize("make", [ChatForm, TextForm])
STOP, LENGTH = inference_pb2.FINISH_REASON_STOP, inference_pb2.FINISH_REASON_LENGTH


def token_text(token_id: int) -> bytes | None:
    """Tokens stand for single bytes, the first of a character of two included."""
    return None if token_id == 999 else bytes([token_id])


def scores(*token_ids: int) -> list[inference_pb2.TokenLogprobs]:
    top = [inference_pb2.TopLogprob(token_id=each, logprob=-2.0) for each in (65, 999)]
    return [inference_pb2.TokenLogprobs(logprob=-float(i + 1), top=top) for i, _ in enumerate(token_ids)]


def messages() -> list[Message]:
    """A completion of five tokens: "hé", half a character, and an id that nobody knows."""
    return [
        Message(token_ids=[104], text="h", logprobs=scores(104)),
        Message(token_ids=[0xC3], logprobs=scores(0xC3)),  # text only when the character is whole
        Message(token_ids=[0xA9], text="é", logprobs=scores(0xA9)),
        Message(token_ids=[0xF0, 999], text="!", logprobs=scores(0xF0, 999), finish_reason=STOP),
    ]


def whole(form: Form) -> Any:
    completion = Completion()
    for message in messages():
        completion.add(message)
    return form.choice(3, completion)


def streamed(form: Form) -> list[Any]:
    return [delta for i, message in enumerate(messages()) for delta in form.deltas(3, message, is_first=i == 0)]


def text_of(choice: Any) -> str:
    inner = choice.get("message") or choice.get("delta")
    return (inner.get("content") or "") if inner is not None else choice.get("text", "")


def tokens_of(choices: Sequence[Any]) -> list[str]:
    found = []
    for choice in choices:
        scored = choice["logprobs"] or {}
        found += [entry["token"] for entry in scored.get("content", ())] + scored.get("tokens", [])
    return found


@FORMS
def test_the_text_is_the_same_whole_and_streamed(make: MakeForm) -> None:
    assert text_of(whole(make(None, False))) == "".join(map(text_of, streamed(make(None, False)))) == "hé!"


@FORMS
def test_the_end_is_told_once_and_last(make: MakeForm) -> None:
    assert whole(make(None, False))["finish_reason"] == "stop"
    ends = [choice["finish_reason"] for choice in streamed(make(None, False))]
    assert ends[-1] == "stop"
    assert set(ends[:-1]) <= {None}


@FORMS
def test_every_choice_has_its_place(make: MakeForm) -> None:
    assert whole(make(None, False))["index"] == 3
    assert {choice["index"] for choice in streamed(make(None, False))} == {3}


@FORMS
def test_every_token_has_its_log_probability_even_without_text(make: MakeForm) -> None:
    expected = ["h", "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0", "token_id:999"]
    assert tokens_of([whole(make(token_text, False))]) == expected
    assert tokens_of(streamed(make(token_text, False))) == expected


@FORMS
def test_without_a_wish_there_are_no_log_probabilities_and_no_ids(make: MakeForm) -> None:
    for choice in (whole(make(None, False)), *streamed(make(None, False))):
        assert choice["logprobs"] is None
        assert "token_ids" not in choice


@FORMS
def test_token_ids_are_all_there_where_they_are_wanted(make: MakeForm) -> None:
    expected = [104, 0xC3, 0xA9, 0xF0, 999]
    assert whole(make(None, True))["token_ids"] == expected
    assert [each for choice in streamed(make(None, True)) for each in choice.get("token_ids", ())] == expected


def test_offsets_of_texts_count_characters() -> None:
    expected = [0, 1, 1, 2, 2]  # half a character makes none yet
    assert whole(TextForm(token_text, False))["logprobs"]["text_offset"] == expected
    found = [choice["logprobs"]["text_offset"] for choice in streamed(TextForm(token_text, False))]
    assert [offset for each in found for offset in each] == expected


def test_chats_begin_with_the_role() -> None:
    first, *others = streamed(ChatForm(None, False))
    assert first["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in others)


# ------------------------------------------------------------------------------------------------------------ answers


class Client:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.ended = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert self.status == 0
            self.status = message["status"]
        else:
            assert not self.ended
            self.body += message["body"]
            self.ended = not message["more_body"]

    @property
    def documents(self) -> list[Any]:
        if not self.body.startswith(b"data: "):
            return [json.loads(self.body)]
        events = self.body.decode().removesuffix("\n\n").split("\n\n")
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


async def here(num_bytes: int, write: Callable[[], bytes]) -> bytes:
    return write()


async def answered(make: MakeForm, *, streamed: bool) -> Client:
    """Two completions, whose messages come in turns."""
    client = Client()
    reply = Reply(client.send, "id", 0.0, closes=lambda: False)
    asked = Asked("tiny", inference_pb2.GenerateRequest(), (), {}, include_usage=True)
    form = make(None, True)
    heading = Heading(form, "id", "tiny", "fp_0102")
    answer: Answer = (
        StreamedAnswer(asked, form, heading, reply, here)
        if streamed
        else WholeAnswer(form, heading, reply, here, max_bytes=1000)
    )
    usage = inference_pb2.Usage(prompt_tokens=4, completion_tokens=3, cached=inference_pb2.CachedTokens(host=2))
    await answer.take(1, Message(token_ids=[66], text="B"))
    await answer.take(0, Message(token_ids=[65], text="A"))
    await answer.take(1, Message(token_ids=[67], text="C", finish_reason=LENGTH))
    await answer.take(0, Message(finish_reason=STOP, usage=usage))
    await answer.end()
    return client


@FORMS
@pytest.mark.parametrize("streamed", [True, False])
async def test_answers_have_everything_of_all_completions_and_end_once(make: Any, streamed: bool) -> None:
    client = await answered(make, streamed=streamed)
    assert client.status == 200
    assert client.ended
    choices = [choice for document in client.documents for choice in document["choices"]]
    for index, text, token_ids, reason in ((0, "A", [65], "stop"), (1, "BC", [66, 67], "length")):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(map(text_of, own)) == text
        assert [each for choice in own for each in choice.get("token_ids", ())] == token_ids
        assert own[-1]["finish_reason"] == reason
    assert {(document["id"], document["model"]) for document in client.documents} == {(f"{make.id_prefix}id", "tiny")}
    usage = client.documents[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 3, 7)
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens_details"]["cached_host_tokens"] == 2


async def test_a_whole_answer_that_grows_too_large_has_to_be_streamed() -> None:
    form, client = ChatForm(None, False), Client()
    reply = Reply(client.send, "id", 0.0, closes=lambda: False)
    answer = WholeAnswer(form, Heading(form, "id", "tiny", "fp_1"), reply, here, max_bytes=100)
    await answer.take(0, Message(text="x" * 60))
    with pytest.raises(InvalidRequestError) as caught:
        await answer.take(1, Message(text="x" * 60))
    assert caught.value.violations[0].field == "stream"
