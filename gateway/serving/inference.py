"""The pipeline: what a tenant asks for, from arrival to the last token."""

import asyncio
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass

from structlog.contextvars import bind_contextvars

from gateway.config import GatewayLimits, ServerConfig
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.explanation import Explanation
from gateway.dispatch.generation import Generation
from gateway.dispatch.journey import Order
from gateway.errors import (
    AdapterChangedError,
    DeadlineExceededError,
    GatewayError,
    InvalidRequestError,
    Violation,
)
from gateway.identity.callers import Caller
from gateway.quota.accounts import Account, Demand, Quotas
from gateway.quota.usage_lines import UsageRecord, UsageSink
from gateway.serving.interruption import Interruption
from gateway.serving.ports import Namespaces, OpenSessions
from gateway.serving.preparation import Preparation
from gateway.serving.prompts import encode_prompt, prompt_field
from gateway.serving.relay import StreamObserver, StreamReport, Write, relay
from gateway.serving.traced import asked
from radixgate.v1 import inference_pb2
from tracing.calls import CallTrace
from tracing.spans import Attributes, Kind


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told how requests go."""

    observer: StreamObserver
    usage: UsageSink


class Inference:
    """Serves callers that have been authenticated. Every method raises GatewayError."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        preparation: Preparation,
        quotas: Quotas,
        sessions: OpenSessions,
        namespaces: Namespaces,
        limits: GatewayLimits,
        config: ServerConfig,
        listeners: Listeners,
    ) -> None:
        self._dispatcher = dispatcher
        self._preparation = preparation
        self._quotas = quotas
        self._sessions = sessions
        self._namespaces = namespaces
        self._limits = limits
        self._config = config
        self._observer = listeners.observer
        self._usage = listeners.usage

    async def generate(
        self,
        caller: Caller,
        request: inference_pb2.GenerateRequest,
        timeout_s: float | None,
        write: Write,
        trace: CallTrace,
        explanation: Explanation | None = None,
    ) -> None:
        """Write the answer's messages as they come. `timeout_s` None: the client has set no deadline. `explanation` is
        told which workers were chosen, and why.
        """
        timeout_s = self._config.default_deadline_s if timeout_s is None else timeout_s
        if caller.terms.max_deadline_s is not None:
            timeout_s = min(timeout_s, caller.terms.max_deadline_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        request_id = request.request_id or uuid.uuid4().hex
        bind_contextvars(request_id=request_id)  # whatever is logged by this call from now on
        with UsageRecord(self._usage, caller, "Generate", request_id, deadline) as record:
            call = _Call(caller, request, request_id, deadline, _Writer(write), trace, record, explanation)
            await self._in_time(call, timeout_s)

    async def _in_time(self, call: "_Call", timeout_s: float) -> None:
        caller, request_id = call.caller, call.request_id
        interruption = Interruption()
        try:
            with interruption, self._sessions.opened(caller, interruption.interrupt):
                async with asyncio.timeout_at(call.deadline):
                    await self._answer(call)
        except TimeoutError:
            raise DeadlineExceededError(
                f"not finished within {timeout_s:g} s (the client's deadline, the tenant's, or the gateway's default)",
                metadata={"requestId": request_id},
            ) from None
        except GatewayError as error:
            error.metadata["requestId"] = request_id[: self._limits.max_request_id_chars]
            raise

    async def _answer(self, call: "_Call") -> None:
        self._quotas.precheck(call.caller)
        model, generation = await self._prepare(call)
        account = call.record.account = Account(model.name, generation.adapter)
        async with AsyncExitStack() as admitted:
            demand = Demand("Generate", generation.max_used_tokens)
            with call.trace.stage("quota"):
                await admitted.enter_async_context(self._quotas.admit(call.caller, demand, account))
            try:
                await self._stream(call, model, generation, account)
            except AdapterChangedError:
                if call.writer.has_written:
                    raise
                # Nobody has seen anything of it: answer with the adapter as it is now, if there is one.
                model, generation = await self._prepare(call)
                await self._stream(call, model, generation, account)

    async def _prepare(self, call: "_Call") -> tuple[ServedModel, Generation]:
        with call.trace.stage("prepare"):
            return await self._preparation.prepare(call.caller, call.request_id, call.request)

    async def _stream(self, call: "_Call", model: ServedModel, generation: Generation, account: Account) -> None:
        def about() -> Attributes:
            return asked(call.request, model.name, generation)

        self._namespaces.used(generation)
        call.trace.describe(about)
        with call.trace.stage("stream", Kind.CLIENT) as stage:
            stage.describe(about)
            report = StreamReport(self._observer, generation, account, call.caller.arrived_at, call.trace, stage)
            order = Order(model, generation, call.deadline, stage.traceparent, call.explanation)
            with await self._dispatcher.begin(order) as stream, report:
                await relay(stream, generation, report, call.writer.write)

    async def count_tokens(
        self, caller: Caller, request: inference_pb2.CountTokensRequest
    ) -> inference_pb2.CountTokensResponse:
        request_id = uuid.uuid4().hex
        bind_contextvars(request_id=request_id)
        self._quotas.precheck(caller)
        model = await self._preparation.model(caller, request.model)
        token_ids = await encode_prompt(request, caller.tenant_id, model, self._limits, model.context_length)
        response = inference_pb2.CountTokensResponse(num_tokens=len(token_ids), token_ids=token_ids)
        self._check_size(response, prompt_field(request))
        account = Account(model.name, counted_tokens=len(token_ids))
        with UsageRecord(self._usage, caller, "CountTokens", request_id) as record:
            async with self._quotas.admit(caller, Demand("CountTokens", counted_tokens=len(token_ids)), account):
                record.account = account
                return response

    def _check_size(self, response: inference_pb2.CountTokensResponse, field: str) -> None:
        size, most = response.ByteSize(), self._limits.max_message_bytes
        if size > most:
            told = (
                f"has {response.num_tokens} tokens, whose ids make an answer of {size} bytes; at most {most} are sent"
            )
            raise InvalidRequestError([Violation(field, told)])


class _Writer:
    """Knows whether the client has been sent anything."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.has_written = False

    async def write(self, message: inference_pb2.GenerateResponse) -> None:
        self.has_written = True
        await self._write(message)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request that is being answered."""

    caller: Caller
    request: inference_pb2.GenerateRequest
    request_id: str
    deadline: float  # on the event loop's clock
    writer: _Writer
    trace: CallTrace
    record: UsageRecord
    explanation: Explanation | None
