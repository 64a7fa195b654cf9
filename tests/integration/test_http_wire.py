"""HTTP as no library would speak it: what can be read in two ways is refused, and old clients are understood."""

import json
from collections.abc import AsyncIterator

import pytest

from radixgate.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import Stack, gateway
from tests.fakes.http_client import CHAT, connected, request_bytes

PATH = "/v1/chat/completions"
BODY = json.dumps(CHAT).encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker]) as running:
        yield running


def post(stack: Stack, *lines: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    head = [b"POST %s HTTP/%s" % (PATH.encode(), version), b"authorization: Bearer " + stack.keys["acme"].encode()]
    return b"\r\n".join([*head, *lines, b"", b""]) + body


HOST = b"host: x"
LENGTH = b"content-length: %d" % len(BODY)
CODED = b"transfer-encoding: chunked"

# Two programs in a row may disagree about where these end, or what they are.
AMBIGUOUS = {
    "a length and chunks": ([HOST, LENGTH, CODED], b"0\r\n\r\n" + HIDDEN),
    "two equal lengths": ([HOST, LENGTH, LENGTH], BODY),
    "two different lengths": ([HOST, LENGTH, b"content-length: 1"], BODY),
    "a list of lengths": ([HOST, LENGTH + b", %d" % len(BODY)], BODY),
    "a length with a sign": ([HOST, b"content-length: +%d" % len(BODY)], BODY),
    "no length": ([HOST, b"content-length:"], BODY),
    "a length below zero": ([HOST, b"content-length: -1"], BODY),
    "a length beyond all numbers": ([HOST, b"content-length: " + b"9" * 30], BODY),
    "chunks twice": ([HOST, CODED, CODED], CHUNKS),
    "an unknown coding": ([HOST, b"transfer-encoding: xchunked"], CHUNKS),
    "another coding first": ([HOST, b"transfer-encoding: gzip, chunked"], CHUNKS),
    "another coding last": ([HOST, b"transfer-encoding: chunked, identity"], CHUNKS),
    "a space before the colon": ([HOST, b"transfer-encoding : chunked"], CHUNKS),
    "a folded line": ([HOST, LENGTH, b"x-a: b", b" transfer-encoding: chunked"], BODY),
    "a bare line feed": ([HOST, LENGTH, b"x-a: b\nx-c: d"], BODY),
    "a bare carriage return": ([HOST, LENGTH, b"x-a: b\rx-c: d"], BODY),
    "a zero byte": ([HOST, LENGTH, b"x-a: \x00"], BODY),
    "a chunk beyond all numbers": ([HOST, CODED], b"f" * 18 + b"\r\n" + BODY),
    "a chunk with a longer end": ([HOST, CODED], CHUNKS.replace(b"\r\n0\r\n", b"xx\r\n0\r\n")),
    "no host": ([LENGTH], BODY),
    "two hosts": ([HOST, b"host: y", LENGTH], BODY),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed(
    stack: Stack, worker: FakeWorker, name: str
) -> None:
    lines, body = AMBIGUOUS[name]
    async with connected(stack.app.http_address) as connection:
        await connection.send(post(stack, *lines, body=body))
        answer = await connection.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert await connection.is_closed()
    assert not worker.submits


@pytest.mark.parametrize("version", [b"0.9", b"2.0", b"3.0"])
async def test_other_versions_are_refused(stack: Stack, version: bytes) -> None:
    async with connected(stack.app.http_address) as connection:
        await connection.send(post(stack, HOST, LENGTH, version=version))
        assert (await connection.answer()).status == 400
        assert await connection.is_closed()


async def test_chunks_are_read_and_what_follows_them_adds_nothing(stack: Stack) -> None:
    for body in (CHUNKS, CHUNKS.replace(b"0\r\n\r\n", b"0\r\nx-tenant-id: globex\r\n\r\n")):
        async with connected(stack.app.http_address) as connection:
            await connection.send(post(stack, HOST, CODED, body=body))
            assert (await connection.answer()).status == 200


@pytest.mark.parametrize("lines", [[], [b"connection: keep-alive"]], ids=repr)
async def test_an_old_client_gets_a_stream_without_chunks(stack: Stack, lines: list[bytes]) -> None:
    """By HTTP/1.0 the end of a connection is the end of the answer."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    async with connected(stack.app.http_address) as connection:
        await connection.send(post(stack, b"content-length: %d" % len(body), *lines, body=body, version=b"1.0"))
        status, headers = await connection.head()
        assert (status, headers["connection"]) == (200, "close")
        assert "transfer-encoding" not in headers
        events = (await connection.reader.read()).split(b"\n\n")
    assert all(event.startswith(b"data: ") for event in events[:-1])
    assert events[-2:] == [b"data: [DONE]", b""]
    assert len(events) > 4


async def test_an_old_client_gets_documents_and_errors_with_their_lengths(stack: Stack) -> None:
    for body, status in ((BODY, 200), (b"{}", 400)):
        async with connected(stack.app.http_address) as connection:
            await connection.send(post(stack, b"content-length: %d" % len(body), body=body, version=b"1.0"))
            answer = await connection.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert answer.json
            assert await connection.is_closed()


async def test_an_old_client_is_told_of_an_error_in_mid_stream(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    body = json.dumps({**CHAT, "max_tokens": 400, "stream": True}).encode()
    async with connected(stack.app.http_address) as connection:
        await connection.send(post(stack, b"content-length: %d" % len(body), body=body, version=b"1.0"))
        await worker.until(lambda: worker.num_running == 1)
        worker.step()
        await connection.head()
        worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL)
        last = (await connection.reader.read()).split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "server_error"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PATCH"])
async def test_other_methods_are_refused_and_the_connection_stays(stack: Stack, method: str) -> None:
    async with connected(stack.app.http_address) as connection:
        await connection.request(method, PATH)
        status, headers = await connection.head()
        assert status in {404, 405}
        if method != "HEAD":
            await connection.reader.readexactly(int(headers["content-length"]))
        await connection.request("GET", "/health")
        assert (await connection.answer()).json == {"status": "serving"}


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1/models/", "/v1/./models", "/health/../v1/models", "/V1/models", "/v1/models%00"]
)
async def test_a_path_is_what_it_says(stack: Stack, path: str) -> None:
    async with connected(stack.app.http_address) as connection:
        await connection.send(request_bytes("GET", path))
        answer = await connection.answer()
        assert (answer.status, answer.error["code"]) == (404, "unknown_route")
