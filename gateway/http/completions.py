"""POST /v1/chat/completions and /v1/completions: the one pipeline, asked and answered in OpenAI's words."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.config import GatewayLimits, HttpConfig
from gateway.dispatch import explanation
from gateway.dispatch.arrivals import Patience
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.explanation import Explanation
from gateway.errors import CancelledRequestError, InvalidRequestError, NotFoundError, Violation
from gateway.http.answers import Answer, Heading, StreamedAnswer, WholeAnswer, fingerprint_of
from gateway.http.asked import Asked, Prompt, in_their_words
from gateway.http.body import Receive, parse_object, read_body
from gateway.http.boundary import Call, Exchange
from gateway.http.errors import Json
from gateway.http.forms import MakeForm
from gateway.http.turns import Turns
from gateway.identity.callers import Caller
from gateway.prompts.threads import PromptThreads
from gateway.serving.interruption import Interruption
from radixgate.v1 import inference_pb2
from tracing.calls import CallTrace

Write = Callable[[inference_pb2.GenerateResponse], Awaitable[None]]
Read = Callable[[Json, GatewayLimits], Asked]

TIMEOUT_HEADER = "x-request-timeout-ms"
EXPLAIN_HEADER = f"x-{explanation.KEY}"
_MAX_TIMEOUT_MS = 366 * 86_400_000
# What is smaller is read and written on the event loop; the rest in threads, where it holds up nobody else.
_SMALL_BYTES = 16_384


class Generations(Protocol):
    async def generate(
        self,
        caller: Caller,
        request: inference_pb2.GenerateRequest,
        timeout_s: float | None,
        write: Write,
        trace: CallTrace,
        explanation: Explanation | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What both endpoints hand their requests to."""

    generations: Generations
    models: "Models"
    threads: PromptThreads
    patience: Patience
    explanations: Callable[[str | None], Explanation | None]  # by what a request says of it


class Models(Protocol):
    def model(self, name: str, may_use: Callable[[str], bool]) -> ServedModel:
        """Raises NotFoundError, or UnavailableError where no worker serves it now."""
        ...


class CompletionRoute:
    """One of the two endpoints."""

    def __init__(
        self,
        read: Read,
        make_form: MakeForm,
        work: Work,
        config: HttpConfig,
        limits: GatewayLimits,
    ) -> None:
        self._read = read
        self._make_form = make_form
        self._work = work
        self._config = config
        self._limits = limits

    async def serve(self, call: Call) -> None:
        caller, exchange = call.caller, call.exchange
        timeout_s = _timeout_s(exchange)
        config = self._config
        headers, receive = dict(exchange.headers), exchange.receive
        with call.trace.stage("read"):
            body = await read_body(headers, receive, config.max_body_bytes, config.body_timeout_s)
            call.body_is_read = True
            asked = await self._asked(caller, body)
        del body  # nobody needs it while the answer is made
        explained = self._work.explanations(exchange.header(EXPLAIN_HEADER))
        if explained is not None:
            exchange.reply.with_headers(lambda: ((EXPLAIN_HEADER, explained.text()),))
        with _ended_with_its_client(exchange.receive):
            model, adapter = await self._find(caller, asked.model, timeout_s)
            answer = self._answer(call, asked, model)
            requests = _requests(asked, model.name, adapter, exchange.request_id)
            await self._generate(call, asked, requests, timeout_s, answer, explained)
        await answer.end()

    def _answer(self, call: Call, asked: Asked, model: ServedModel) -> Answer:
        exchange = call.exchange
        form = self._make_form(model.encoder.token_bytes if asked.wants_logprobs else None, asked.wants_token_ids)
        heading = Heading(form, exchange.request_id, asked.model, fingerprint_of(model))
        write_down = functools.partial(self._written, call.caller.tenant_id)
        if asked.stream:
            return StreamedAnswer(asked, form, heading, exchange.reply, write_down)
        return WholeAnswer(form, heading, exchange.reply, write_down, self._limits.max_message_bytes)

    async def _asked(self, caller: Caller, body: bytes) -> Asked:
        if len(body) <= _SMALL_BYTES:
            return self._read(parse_object(body), self._limits)
        return await self._work.threads.run(caller.tenant_id, lambda: self._read(parse_object(body), self._limits))

    async def _written(self, tenant_id: str, num_bytes: int, write: Callable[[], bytes]) -> bytes:
        if num_bytes <= _SMALL_BYTES:
            return write()
        return await self._work.threads.run(tenant_id, write)

    async def _find(self, caller: Caller, named: str, timeout_s: float | None) -> tuple[ServedModel, str]:
        """Return the model that is meant, and the adapter's name or "". Waits a while for a worker that serves it."""

        async def look() -> tuple[ServedModel, str]:
            return self._found(caller, named)

        return await self._work.patience.until(look, timeout_s)

    def _found(self, caller: Caller, named: str) -> tuple[ServedModel, str]:
        base, _, adapter = named.rpartition(":")
        readings = [(named, ""), *([(base, adapter)] if base and adapter else [])]
        for name, rest in readings:
            if caller.may_use_model(name):
                with contextlib.suppress(NotFoundError):
                    return self._work.models.model(name, caller.may_use_model), rest
        raise NotFoundError("model", named)

    async def _generate(
        self,
        call: Call,
        asked: Asked,
        requests: Sequence[inference_pb2.GenerateRequest],
        timeout_s: float | None,
        answer: Answer,
        explained: Explanation | None,
    ) -> None:
        caller = call.caller
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        async def serve(place: int) -> None:
            async def write(message: inference_pb2.GenerateResponse) -> None:
                await answer.take(place * asked.n + message.index, message)

            remaining_s = None if deadline is None else deadline - time.monotonic()
            try:
                generate = self._work.generations.generate
                await generate(caller, requests[place], remaining_s, write, call.trace, explained)
            except InvalidRequestError as error:
                raise in_their_words(error, _names(asked, place)) from None
            except NotFoundError:
                raise NotFoundError("model", asked.model) from None  # model and adapter are one name here

        await Turns(len(requests), caller.terms.max_concurrent_requests, serve).run()


def _requests(asked: Asked, model: str, adapter: str, request_id: str) -> list[inference_pb2.GenerateRequest]:
    """Return one request for each prompt."""
    requests = []
    for place, prompt in enumerate(asked.prompts):
        request = inference_pb2.GenerateRequest()
        request.CopyFrom(asked.common)
        request.model, request.adapter = model, adapter
        request.request_id = request_id if len(asked.prompts) == 1 else f"{request_id}-{place}"
        _set_prompt(request, prompt)
        requests.append(request)
    return requests


def _set_prompt(request: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, list):
        request.tokens.token_ids.extend(prompt)
        request.tokens.SetInParent()
    else:
        request.chat.CopyFrom(prompt)


def _names(asked: Asked, place: int) -> Mapping[str, str]:
    if len(asked.prompts) == 1:
        return asked.names
    return {**asked.names, "text": f"prompt[{place}]", "tokens.token_ids": f"prompt[{place}]"}


def _timeout_s(exchange: Exchange) -> float | None:
    value = exchange.header(TIMEOUT_HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:12]) <= _MAX_TIMEOUT_MS and len(value) <= 11):
        raise InvalidRequestError([Violation(TIMEOUT_HEADER, f"must be an integer from 1 to {_MAX_TIMEOUT_MS}")])
    return int(value) / 1000


@contextlib.contextmanager
def _ended_with_its_client(receive: Receive) -> Iterator[None]:
    """End what runs inside with CancelledRequestError when the client closes the connection."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        interruption.interrupt(CancelledRequestError("the client has gone"))

    with Interruption() as interruption:
        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
