"""A tenant's access over gRPC."""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cli.isolation_check.probes import Claim, Question, Refused, Reply, Unreachable
from radixgate.v1 import inference_pb2, inference_pb2_grpc

_TIMEOUT_S = 120.0
_MAX_WAITS = 8
_LONGEST_WAIT_S = 70.0

# A tenant, or a namespace of the cache, as clients of other systems would spell it.
CLAIMED_NAMES = (
    "tenant", "tenant-id", "tenant_id", "tenantid", "x-tenant", "x-tenant-id", "x.tenant", "x-radixgate-tenant",
    "radixgate-tenant-id", "extra-key", "extra_key", "extrakey", "x-extra-key", "x-radixgate-extra-key", "cache-key",
    "cache-salt", "cache_salt", "x-cache-salt", "cache-version", "x-radixgate-cache-version", "adapter-revision",
)  # fmt: skip


class GrpcProbe:
    """Fits Probe."""

    over = "gRPC"
    refusals_of_claims = frozenset({"INVALID_ARGUMENT"})
    not_found = "NOT_FOUND"

    def __init__(
        self, channel: grpc.Channel, key: str, model: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._metadata: tuple[tuple[str, str | bytes], ...] = (("authorization", f"Bearer {key}"),) if key else ()
        self._model = model
        self._sleep = sleep

    @property
    def claims(self) -> Sequence[Claim]:
        in_metadata = [Claim("metadata", f"{name}{end}", "someone") for name in CLAIMED_NAMES for end in ("", "-bin")]
        return [*in_metadata, Claim("body", "tenant", "someone"), Claim("body", "extra_key", "k" * 16)]

    def ask(self, question: Question, claim: Claim | None = None) -> Reply:
        request = inference_pb2.GenerateRequest(
            model=question.model or self._model,
            adapter=question.adapter,
            scope=question.scope,
            tokens=inference_pb2.TokenPrompt(token_ids=question.token_ids),
            sampling=inference_pb2.SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True),
        )
        metadata = self._metadata
        if claim is not None and claim.place == "metadata":
            as_bytes = claim.name.endswith("-bin")
            metadata = (*metadata, (claim.name, claim.value.encode() if as_bytes else claim.value))
        elif claim is not None:
            value: Any = claim.value.encode() if claim.name == "extra_key" else claim.value
            setattr(request, claim.name, value)
        reply: Reply = self._patiently(lambda: self._generate(request, metadata))
        return reply

    def adapters(self) -> frozenset[str]:
        for model in self._models():
            if model.name == self._model or not self._model:
                return frozenset(model.adapters)
        return frozenset()

    def models(self) -> dict[str, int]:
        """Return the context lengths of the tenant's models, by name."""
        return {model.name: model.context_length for model in self._models()}

    def tokens_of(self, text: str) -> Sequence[int]:
        request = inference_pb2.CountTokensRequest(model=self._model, text=text)
        answer = self._patiently(
            lambda: self._stub.CountTokens(request, metadata=self._metadata, timeout=_TIMEOUT_S)
        )  # fmt: skip
        return cast("Sequence[int]", answer.token_ids)

    def _models(self) -> Sequence[inference_pb2.Model]:
        request = inference_pb2.ListModelsRequest()
        answer = self._patiently(
            lambda: self._stub.ListModels(request, metadata=self._metadata, timeout=_TIMEOUT_S)
        )  # fmt: skip
        return cast("Sequence[inference_pb2.Model]", answer.models)

    def _generate(self, request: inference_pb2.GenerateRequest, metadata: Any) -> Reply:
        started = time.monotonic()
        first_token_s, usage = None, None
        for message in self._stub.Generate(request, metadata=metadata, timeout=_TIMEOUT_S):
            if first_token_s is None and message.token_ids:
                first_token_s = time.monotonic() - started
            if message.HasField("usage"):
                usage = message.usage
        if usage is None or first_token_s is None:
            raise Unreachable("an answer ended without its usage")
        cached = usage.cached.device + usage.cached.host + usage.cached.storage
        return Reply(
            usage.prompt_tokens, cached, usage.public_prefix_tokens, usage.cached_public_tokens, first_token_s
        )  # fmt: skip

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Call, and again after the time that the gateway names, where a limit is reached. Raises Refused."""
        for _ in range(_MAX_WAITS):
            try:
                return call()
            except grpc.RpcError as error:
                refused, retry_s = _refusal(error)
                if retry_s is None or retry_s > _LONGEST_WAIT_S:
                    raise refused from error
                self._sleep(retry_s)
        raise refused


def _refusal(error: grpc.RpcError) -> tuple[Refused, float | None]:
    """Return what a call was refused with, and after what time to try again."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    reason, retry_s = "", None
    details: dict[str, str] = {}
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for packed in () if status is None else status.details:
        if packed.Unpack(info):
            reason = info.reason
            details |= {key: value for key, value in info.metadata.items() if key != "requestId"}
        elif packed.Unpack(bad):
            details |= {violation.field: violation.description for violation in bad.field_violations}
        elif packed.Unpack(retry):
            retry_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Refused(error.code().name, error.details() or "", reason, details), retry_s
