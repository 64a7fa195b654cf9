"""Connections over bare sockets: bounds on size and time, clients that stall or go, and how the server stops."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.config import GatewayLimits, HttpConfig, ServerConfig, TlsConfig
from tests.fakes.authority import Authority
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import Stack, gateway, until
from tests.fakes.http_client import CHAT, Answer, Connection, ask, connected, request_bytes

PATH = "/v1/chat/completions"
MANY = {**CHAT, "max_tokens": 400, "stream": True}
SHORT = HttpConfig(
    listen="127.0.0.1:0", head_timeout_s=0.3, body_timeout_s=0.3, keep_alive_s=0.3, write_timeout_s=0.3,
    max_body_bytes=4096,
)  # fmt: skip


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker]) as running:
        yield running


@pytest.fixture
async def strict(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    """A gateway without patience."""
    async with gateway(redis_url, [worker], http=SHORT) as running:
        yield running


def credential(stack: Stack) -> dict[str, str]:
    return {"authorization": f"Bearer {stack.keys['acme']}"}


async def chat(stack: Stack, body: Any = CHAT, **headers: str) -> Answer:
    return await ask(stack.app.http_address, "POST", PATH, body, key=stack.keys["acme"], headers=headers)


# ------------------------------------------------------------------------------------------------------ what is there


async def test_health_is_open_and_tells_of_workers(redis_url: str) -> None:
    async with gateway(redis_url, ["127.0.0.1:1"], tenants=()) as lonely:
        assert (await ask(lonely.app.http_address, "GET", "/health")).status == 503
    async with FakeWorker() as worker, gateway(redis_url, [worker], tenants=()) as ready:
        answer = await ask(ready.app.http_address, "GET", "/health")
        assert (answer.status, answer.json) == (200, {"status": "serving"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/metrics", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/tiny", 405),
        ("POST", "/health", 404),
    ],
)
async def test_what_is_not_there_is_refused_in_openais_form(stack: Stack, method: str, path: str, status: int) -> None:
    answer = await ask(stack.app.http_address, method, path, key=stack.keys["acme"])
    assert answer.status == status
    assert set(answer.error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/models", "/v1/models/tiny"])
async def test_strangers_are_refused_everywhere(stack: Stack, path: str) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    for headers in ({}, {"authorization": "Bearer rg_x"}, {"authorization": "Basic abc"}, {"api-key": "x"}):
        answer = await ask(stack.app.http_address, method, path, CHAT if method == "POST" else b"", headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_two_credentials_are_one_too_many(stack: Stack, worker: FakeWorker) -> None:
    key = f"authorization: Bearer {stack.keys['acme']}\r\n".encode()
    async with connected(stack.app.http_address) as connection:
        await connection.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + key + key + b"\r\n")
        assert (await connection.answer()).status == 401


async def test_requests_are_told_by_their_ids(stack: Stack) -> None:
    answer = await chat(stack, **{"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json["id"] == "chatcmpl-mine-1"
    assert int(answer.headers["openai-processing-ms"]) >= 0
    for unusable in ("with space", "x" * 200, "\xe9"):
        assert (await chat(stack, **{"x-request-id": unusable})).headers["x-request-id"] != unusable


async def test_requests_are_measured_as_calls_are(stack: Stack) -> None:
    stack.observer.finished.clear()
    await chat(stack)
    await chat(stack, {**CHAT, "n": 0})
    await ask(stack.app.http_address, "GET", "/v1/models")
    await ask(stack.app.http_address, "GET", "/nothing")
    assert stack.observer.finished == [
        ("HTTP/chat.completions", "OK", "acme"),
        ("HTTP/chat.completions", "INVALID_ARGUMENT", "acme"),
        ("HTTP/models.list", "UNAUTHENTICATED", ""),
    ]
    assert stack.observer.completions == [4]


# ------------------------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"model": "tiny", "model": "tiny"}', b'{"a": NaN}', b"\xff\xfe", b"[" * 50_000, b'{"a":"\\ud800"}'],
)
async def test_bodies_that_are_no_json_object_are_refused(stack: Stack, body: bytes) -> None:
    answer = await chat(stack, body)
    assert (answer.status, answer.error["param"]) == (400, "body")


async def test_a_large_body_is_read_like_a_small_one(stack: Stack) -> None:
    assert (await chat(stack, {**CHAT, "metadata": {"filling": "x" * 100_000}})).status == 200
    assert (await chat(stack, b"{" + b" " * 100_000)).status == 400


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {"content-encoding": "gzip"}])
async def test_bodies_of_other_kinds_are_refused(stack: Stack, headers: dict[str, str]) -> None:
    assert (await chat(stack, CHAT, **headers)).status == 415


async def test_a_body_that_says_it_is_too_large_is_refused_unread(strict: Stack) -> None:
    async with connected(strict.app.http_address) as connection:
        head = {**credential(strict), "content-length": "5000", "expect": "100-continue"}
        await connection.request("POST", PATH, headers=head)
        answer = await connection.answer()  # and no word to go on
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert await connection.is_closed()


async def test_a_body_that_turns_out_too_large_is_refused_while_it_comes(strict: Stack) -> None:
    async with connected(strict.app.http_address) as connection:
        await connection.request("POST", PATH, headers={**credential(strict), "transfer-encoding": "chunked"})
        for _ in range(5):
            await connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await connection.answer()).status == 413
        assert await connection.is_closed()


async def test_a_client_that_is_refused_can_finish_its_body_and_go_on(stack: Stack) -> None:
    async with connected(stack.app.http_address) as connection:
        body = b"x" * 1_000_000
        await connection.request("POST", PATH, body, {"authorization": "Bearer wrong"})
        assert (await connection.answer()).status == 401
        await connection.request("POST", PATH, CHAT, credential(stack))
        assert (await connection.answer()).status == 200


async def test_a_client_that_waits_for_a_word_gets_it(stack: Stack) -> None:
    body = json.dumps(CHAT).encode()
    async with connected(stack.app.http_address) as connection:
        head = {**credential(stack), "content-length": str(len(body)), "expect": "100-continue"}
        await connection.request("POST", PATH, headers=head)
        assert (await connection.head())[0] == 100
        await connection.send(body)
        assert (await connection.answer()).status == 200


# ---------------------------------------------------------------------------------------------------------- patience


async def test_a_head_that_does_not_come_in_time_loses_the_connection(strict: Stack) -> None:
    async with connected(strict.app.http_address) as silent, connected(strict.app.http_address) as slow:
        await slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: ")
        for _ in range(4):  # a byte now and then changes nothing; one behind the end would reset the connection
            await asyncio.sleep(0.05)
            await slow.send(b"b")
        assert (await slow.answer()).status == 408
        assert await slow.is_closed()
        assert await silent.is_closed()


async def test_a_second_head_must_come_in_time_too(strict: Stack) -> None:
    async with connected(strict.app.http_address) as connection:
        await connection.request("GET", "/v1/models", headers=credential(strict))
        assert (await connection.answer()).status == 200
        await connection.send(b"GET /v1/mod")
        assert (await connection.answer()).status == 408
        assert await connection.is_closed()


async def test_a_body_that_does_not_come_in_time_loses_the_connection(strict: Stack) -> None:
    async with connected(strict.app.http_address) as connection:
        await connection.request("POST", PATH, b'{"model"', {**credential(strict), "content-length": "100"})
        answer = await connection.answer()
        assert (answer.status, answer.error["code"]) == (408, "body_too_slow")
        assert await connection.is_closed()
    assert len(strict.app.fronts.calls.in_flight) == 0


async def test_a_connection_without_requests_is_closed(strict: Stack) -> None:
    async with connected(strict.app.http_address) as connection:
        await connection.request("GET", "/health")
        assert (await connection.answer()).status == 200
        assert await connection.is_closed()


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_head_that_is_too_large_is_refused(stack: Stack, in_pieces: bool) -> None:
    async with connected(stack.app.http_address) as connection:
        await connection.send(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        with contextlib.suppress(ConnectionError):
            if in_pieces:
                await connection.send(b"x-endless: ")
                for _ in range(50):
                    await connection.send(b"y" * 1000)
            else:
                await connection.send(b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100)) + b"\r\n")
        answer = await connection.answer()
        assert (answer.status, answer.error["code"]) == (431, "head_too_large")


async def test_what_is_not_http_is_refused_and_closed(stack: Stack) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    ):
        async with connected(stack.app.http_address) as connection:
            await connection.send(garbage)
            answer = await connection.answer()
            assert answer.status in {400, 404}, garbage
            assert await connection.is_closed()


async def test_one_connection_too_many_is_told_so(redis_url: str, worker: FakeWorker) -> None:
    config = HttpConfig(listen="127.0.0.1:0", max_connections=2)
    async with gateway(redis_url, [worker], http=config) as stack:
        async with connected(stack.app.http_address) as first, connected(stack.app.http_address) as second:
            for connection in (first, second):
                await connection.request("GET", "/health")
                assert (await connection.answer()).status == 200
            async with connected(stack.app.http_address) as third:
                answer = await third.answer()
                assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
                assert await third.is_closed()
        await until_answered(stack)


async def until_answered(stack: Stack) -> None:
    async with asyncio.timeout(5):
        while (await ask(stack.app.http_address, "GET", "/health")).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --------------------------------------------------------------------------------------------------- clients that go


async def begun(stack: Stack, worker: FakeWorker, connection: Connection, body: Any = MANY) -> None:
    """Begin a stream and read its head."""
    worker.hold()
    await connection.request("POST", PATH, body, credential(stack))
    await worker.until(lambda: worker.num_running == 1)
    worker.step()
    assert (await connection.head())[0] == 200


async def test_a_client_that_goes_in_mid_stream_cancels_its_sequence(stack: Stack, worker: FakeWorker) -> None:
    async with connected(stack.app.http_address) as connection:
        await begun(stack, worker, connection)
    await worker.until(lambda: len(worker.cancels) == 1)
    await until(lambda: stack.observer.finished[-1] == ("HTTP/chat.completions", "CANCELLED", "acme"))
    assert stack.observer.open_streams["acme"] == 0


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "stream": True}])
async def test_a_client_that_goes_while_it_waits_cancels_its_sequence(
    stack: Stack, worker: FakeWorker, body: Any
) -> None:
    worker.hold()
    async with connected(stack.app.http_address) as connection:
        await connection.request("POST", PATH, body, credential(stack))
        await worker.until(lambda: worker.num_running == 1)
    await worker.until(lambda: len(worker.cancels) == 1)


async def test_a_client_that_goes_cancels_all_its_prompts(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    async with connected(stack.app.http_address) as connection:
        body = {"model": "tiny", "prompt": [[11], [12], [13]], "max_tokens": 50}
        await connection.request("POST", "/v1/completions", body, credential(stack))
        await worker.until(lambda: worker.num_running == 3)
    await worker.until(lambda: len(worker.cancels) == 3)


async def test_a_client_that_goes_behind_a_second_request_is_noticed(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    async with connected(stack.app.http_address) as connection:
        await connection.send(request_bytes("POST", PATH, MANY, credential(stack)) * 2)
        await worker.until(lambda: worker.num_running == 1)
    await worker.until(lambda: len(worker.cancels) == 1)
    assert len(worker.submits) == 1


async def test_a_request_that_comes_too_early_is_not_served_and_the_first_is(stack: Stack) -> None:
    async with connected(stack.app.http_address) as connection:
        await connection.send(request_bytes("POST", PATH, CHAT, credential(stack)) * 3)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.is_closed()


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_client_that_reads_nothing_is_cut_off_and_frees_everything(
    redis_url: str, tmp_path: Path, by_tls: bool
) -> None:
    config = HttpConfig(listen="127.0.0.1:0", write_timeout_s=0.5)
    async with FakeWorker(context_length=100_000, max_sequence_tokens=100_000) as worker:
        async with gateway(redis_url, [worker], http=config, **encrypted(tmp_path, by_tls)) as stack:
            with socket.socket() as plain:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                host, _, port = (stack.app.http_address or "").rpartition(":")
                plain.connect((host, int(port)))
                client = await asyncio.to_thread(unverified().wrap_socket, plain) if by_tls else plain
                body = {**MANY, "max_tokens": 60_000, "n": 8, "logprobs": True, "top_logprobs": 0}
                worker.logprobs = 1
                client.sendall(request_bytes("POST", PATH, body, credential(stack)))
                await until(lambda: worker.num_running > 0)
                await until(lambda: worker.num_running == 0 and bool(worker.cancels), timeout_s=30)
                await until(lambda: stack.observer.open_streams["acme"] == 0, timeout_s=30)
                await until(lambda: len(stack.app.fronts.calls.in_flight) == 0, timeout_s=10)


def encrypted(folder: Path, by_tls: bool) -> dict[str, Any]:
    """What makes a gateway speak TLS."""
    if not by_tls:
        return {}
    authority = Authority()
    cert_file, key_file = authority.server().write(folder)
    return {
        "tls": TlsConfig(cert_file, key_file),
        "credentials": grpc.ssl_channel_credentials(authority.pem),
    }


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_streams_by_tls_are_whole_and_connections_are_used_again(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    async with gateway(redis_url, [worker], **encrypted(tmp_path, by_tls=True)) as stack:
        host, _, port = (stack.app.http_address or "").rpartition(":")
        connection = Connection(*await asyncio.open_connection(host, int(port), ssl=unverified()))
        async with asyncio.timeout(30):
            for _ in range(5):
                await connection.request("POST", PATH, MANY, credential(stack))
                assert (await connection.answer()).body.endswith(b"data: [DONE]\n\n")
        connection.writer.close()


# ------------------------------------------------------------------------------------------------ capacity and the end


async def test_http_and_grpc_share_the_room_for_calls(redis_url: str, worker: FakeWorker) -> None:
    worker.hold()
    async with gateway(redis_url, [worker], limits=GatewayLimits(max_concurrent_rpcs=2)) as stack:
        async with connected(stack.app.http_address) as connection:
            await connection.request("POST", PATH, MANY, credential(stack))
            call = stack.call(tokens={"token_ids": [11]}, sampling={"max_new_tokens": 400})
            await worker.until(lambda: worker.num_running == 2)
            answer = await chat(stack)
            assert (answer.status, answer.error["code"]) == (503, "too_many_calls")
            assert answer.headers["retry-after"] == "1"
            assert (await ask(stack.app.http_address, "GET", "/health")).status == 200
            call.cancel()


async def test_a_gateway_that_drains_refuses_and_lets_streams_finish(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        async with connected(stack.app.http_address) as idle, connected(stack.app.http_address) as busy:
            await idle.request("GET", "/health")
            await idle.answer()
            await begun(stack, worker, busy, {**CHAT, "max_tokens": 30, "stream": True})
            stopping = asyncio.create_task(stack.app.stop())
            assert await idle.is_closed()
            assert (await ask(stack.app.http_address, "GET", "/health")).status == 503
            refused = await chat(stack)
            assert (refused.status, refused.error["code"]) == (503, "gateway_shutting_down")
            assert refused.headers["connection"] == "close"
            worker.go()
            body = b"".join([chunk async for chunk in busy.chunks()])
            assert body.endswith(b"data: [DONE]\n\n")
            assert await busy.is_closed()
            await asyncio.wait_for(stopping, 10)


async def test_streams_that_outlast_the_drain_end_with_an_error_event(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], server=ServerConfig(drain_s=0.2)) as stack:
        async with connected(stack.app.http_address) as streaming, connected(stack.app.http_address) as waiting:
            await begun(stack, worker, streaming)
            await waiting.request("POST", PATH, CHAT, credential(stack))
            await worker.until(lambda: worker.num_running == 2)
            await asyncio.wait_for(stack.app.stop(), 10)
            body = b"".join([chunk async for chunk in streaming.chunks()])
            last = Answer(200, {}, body).events[-1]
            assert last["error"]["code"] == "gateway_shutting_down"
            assert b"[DONE]" not in body
            answer = await waiting.answer()
            assert (answer.status, answer.error["code"]) == (503, "gateway_shutting_down")


async def test_a_gateway_that_stops_while_a_body_comes_answers_in_words(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], server=ServerConfig(drain_s=0.1)) as stack:
        async with connected(stack.app.http_address) as connection:
            await connection.request("POST", PATH, b"{", {**credential(stack), "content-length": "100"})
            await until(lambda: len(stack.app.fronts.calls.in_flight) == 1)
            await asyncio.wait_for(stack.app.stop(), 10)
            assert (await connection.answer()).status == 503


async def test_an_address_that_is_taken_ends_the_start(redis_url: str, worker: FakeWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {listen}: address already in use"):
            async with gateway(redis_url, [worker], http=HttpConfig(listen=listen)):
                pass


async def test_http_can_be_left_out(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], http=HttpConfig(listen=None)) as stack:
        assert stack.app.http_address is None
        assert (await stack.generate(tokens={"token_ids": [11]}, sampling={"max_new_tokens": 2})).token_ids
