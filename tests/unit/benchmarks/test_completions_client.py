"""The client of OpenAI's completions against a server that sends bytes over a real socket, however they are cut."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.completions_client import CompletionsClient
from benchmarks.load import AnswerError, Timing
from benchmarks.workloads import Turn

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TURN = Turn("acme", (5, 6, 7), 3)


class OneAnswer:
    """What a server sends, piece by piece, and the request that it was sent."""

    def __init__(self, pieces: Sequence[bytes], pause_s: float = 0.0) -> None:
        self._pieces = pieces
        self._pause_s = pause_s
        self.request_line = b""
        self.body: dict[str, Any] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.request_line, *fields = head.splitlines()
        length = next(int(field.split(b":")[1]) for field in fields if field.startswith(b"Content-Length"))
        self.body = json.loads(await reader.readexactly(length))
        for piece in self._pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self._pause_s)
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def serving(answer: OneAnswer) -> AsyncIterator[CompletionsClient]:
    server = await asyncio.start_server(answer.serve, "127.0.0.1", 0)
    async with server:
        yield CompletionsClient("127.0.0.1", server.sockets[0].getsockname()[1], "tiny")


async def asked(answer: OneAnswer, turn: Turn = TURN) -> Timing:
    async with serving(answer) as client:
        return await asyncio.wait_for(client.answer(turn), 10)


def event(*token_ids: int) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": "x", "token_ids": token_ids}]}).encode() + b"\n\n"


def usage(cached: int | None = 2) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": details}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STREAM = event(11) + event() + event(12, 13) + usage() + DONE


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def chunked(*contents: bytes) -> bytes:
    return b"".join(chunk(content) for content in contents) + b"0\r\n\r\n"


async def test_tokens_and_counts_are_read() -> None:
    answer = OneAnswer([OK + chunked(event(11), event(12, 13), usage(), DONE)])

    timing = await asked(answer)

    assert timing.token_ids == (11, 12, 13)
    assert [arrival.tokens for arrival in timing.arrivals] == [1, 2]
    assert (timing.prompt_tokens, timing.cached_tokens) == (3, 2)
    assert answer.request_line == b"POST /v1/completions HTTP/1.1"


async def test_a_greedy_request_has_no_seed_and_a_sampled_one_has() -> None:
    greedy, sampled = (OneAnswer([OK + chunked(STREAM)]) for _ in range(2))

    await asked(greedy)
    await asked(sampled, Turn("acme", (5, 6, 7), 3, temperature=1.0, seed=9))

    assert greedy.body["prompt"] == [5, 6, 7]
    assert (greedy.body["max_tokens"], greedy.body["temperature"], greedy.body["ignore_eos"]) == (3, 0, True)
    assert "seed" not in greedy.body
    assert (sampled.body["temperature"], sampled.body["seed"]) == (1, 9)


async def test_each_message_has_the_time_at_which_it_came() -> None:
    pieces = [OK, chunk(event(11)), chunk(event(12, 13)), chunk(usage() + DONE), b"0\r\n\r\n"]

    timing = await asked(OneAnswer(pieces, pause_s=0.05))

    first, second = timing.arrivals
    assert timing.ttft_s >= 0.04
    assert second.at_s - first.at_s >= 0.04


@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=12), data=st.data())
def test_it_does_not_matter_where_chunks_and_packets_are_cut(cuts: list[int], data: st.DataObject) -> None:
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    sent = OK + chunked(*(STREAM[low:high] for low, high in pairwise(edges)))
    packet = data.draw(st.integers(20, len(sent)))

    timing = asyncio.run(asked(OneAnswer([sent[at : at + packet] for at in range(0, len(sent), packet)])))

    assert timing.token_ids == (11, 12, 13)
    assert timing.cached_tokens == 2


async def test_a_response_may_end_with_its_connection() -> None:
    timing = await asked(OneAnswer([b"HTTP/1.1 200 OK\r\n\r\n", event(1, 2, 3) + usage(cached=None) + DONE]))

    assert timing.token_ids == (1, 2, 3)
    assert timing.cached_tokens == 0


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b'HTTP/1.1 400 Bad Request\r\nContent-Length: 14\r\n\r\n{"error":"no"}', "400 Bad Request: .*no"),
        (OK + chunked(b'data: {"error": {"message": "out of memory"}}\n\n', DONE), "out of memory"),
        (OK + chunked(event(11)), "no end"),
        (OK + chunk(event(11)), "broke off"),
        (OK + chunk(event(11))[:-20], "broke off"),
        (b"HTTP/1.1 200", "broke off"),
        (OK + chunked(event(11), DONE), "no usage"),
        (OK + chunked(usage(), DONE), "no token ids"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(sent: bytes, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        await asked(OneAnswer([sent]))
