"""Bad input gets the right status with the field and the limit, and the server goes on serving."""

from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Client, Stack, chat_request, tokens_request

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

Code = grpc.StatusCode
POOL = 4096  # slots, see conftest; less than the model's context of 8,192


def changed(change: Callable[[inference_pb2.GenerateRequest], Any]) -> inference_pb2.GenerateRequest:
    request = chat_request("Hello!", max_new_tokens=2)
    change(request)
    return request


def sampling(**fields: Any) -> inference_pb2.GenerateRequest:
    return changed(lambda request: request.sampling.MergeFrom(inference_pb2.SamplingParams(**fields)))


# What is sent, the status, the field that is named, and what is said of it.
REFUSALS = {
    "unknown model": (changed(lambda r: setattr(r, "model", "gpt-17")), Code.NOT_FOUND, "model", "gpt-17"),
    "unknown adapter": (changed(lambda r: setattr(r, "adapter", "poet")), Code.NOT_FOUND, "adapter", "poet"),
    "no prompt": (inference_pb2.GenerateRequest(), Code.INVALID_ARGUMENT, "prompt", "one of text, chat, tokens"),
    "empty text": (inference_pb2.GenerateRequest(text=""), Code.INVALID_ARGUMENT, "text", "at least one token"),
    "empty chat": (
        inference_pb2.GenerateRequest(chat=inference_pb2.ChatPrompt()),
        Code.INVALID_ARGUMENT,
        "chat.messages",
        "at least one message",
    ),
    "no token ids": (tokens_request([]), Code.INVALID_ARGUMENT, "tokens.token_ids", "at least one token"),
    "token id beyond the vocabulary": (
        tokens_request([1, 49_152]),
        Code.INVALID_ARGUMENT,
        "tokens.token_ids[1]",
        "is 49152; must be 0 to 49151",
    ),
    "prompt beyond context and pool": (
        tokens_request([1] * 8193),
        Code.INVALID_ARGUMENT,
        "tokens.token_ids",
        f"has 8193 tokens and leaves no room in the {POOL} tokens that a worker's pool can hold",
    ),
    "prompt and output beyond what the pool can ever hold": (
        tokens_request([1] * 4000, max_new_tokens=200),
        Code.INVALID_ARGUMENT,
        "sampling.max_new_tokens",
        f"200 after a prompt of 4000 makes 4200, over the {POOL} tokens",
    ),
    "temperature -1": (sampling(temperature=-1), Code.INVALID_ARGUMENT, "sampling.temperature", "must be 0 to 100"),
    "temperature NaN": (
        sampling(temperature=float("nan")),
        Code.INVALID_ARGUMENT,
        "sampling.temperature",
        "is nan; must be 0 to 100",
    ),
    "top_p 2": (sampling(top_p=2), Code.INVALID_ARGUMENT, "sampling.top_p", "must be above 0 and at most 1"),
    "max_new_tokens 0": (
        sampling(max_new_tokens=0),
        Code.INVALID_ARGUMENT,
        "sampling.max_new_tokens",
        "is 0; must be at least 1",
    ),
    "5,000 stop strings": (
        sampling(stop=["x"] * 5000),
        Code.INVALID_ARGUMENT,
        "sampling.stop",
        "has 5000 strings; at most 16 are allowed",
    ),
    "a tenant of one's own choice": (
        changed(lambda r: setattr(r, "tenant", "demo-b")),
        Code.INVALID_ARGUMENT,
        "tenant",
        "comes from the credential",
    ),
    "an extra key of one's own choice": (
        changed(lambda r: setattr(r, "extra_key", b"x" * 16)),
        Code.INVALID_ARGUMENT,
        "extra_key",
        "comes from the credential",
    ),
    "scope too long": (
        changed(lambda r: setattr(r, "scope", "s" * 257)),
        Code.INVALID_ARGUMENT,
        "scope",
        "has 257 bytes of UTF-8; at most 256 are allowed",
    ),
}


def refusal(client: Client, request: inference_pb2.GenerateRequest) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        list(client.stream(request))
    return refused.value


def violations(error: grpc.RpcError) -> dict[str, str]:
    """Return what the google.rpc details name: each field with what is said of it, each missing thing with its name."""
    found: dict[str, str] = {}
    status = rpc_status.from_call(cast(grpc.Call, error))
    assert status is not None, "no google.rpc details"
    for detail in status.details:
        bad_request, resource = error_details_pb2.BadRequest(), error_details_pb2.ResourceInfo()
        if detail.Unpack(bad_request):
            found |= {violation.field: violation.description for violation in bad_request.field_violations}
        elif detail.Unpack(resource):
            found[resource.resource_type] = resource.resource_name
    return found


@pytest.mark.parametrize(("request_", "code", "field", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_each_kind_of_bad_input_is_refused_by_name(
    alice: Client, request_: inference_pb2.GenerateRequest, code: grpc.StatusCode, field: str, text: str
) -> None:
    error = refusal(alice, request_)

    assert error.code() is code, error.details()
    said = violations(error)
    assert list(said) == [field]
    assert text in said[field]
    assert alice.ask("Are you still there?", max_new_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("key", [None, "", "nonsense", "rg_0123456789abcdef_wrong"])
def test_without_a_valid_key_nothing_is_served(stack: Stack, key: str | None) -> None:
    client = Client(stack.grpc, key)
    if key == "":
        client.metadata = (("authorization", "Bearer "),)

    error = refusal(client, chat_request("Hello!"))
    client.close()

    assert error.code() is Code.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["x-tenant", "tenant-id", "x-radixgate-tenant", "extra-key", "cache-salt"])
def test_a_namespace_in_the_metadata_is_refused(stack: Stack, name: str) -> None:
    client = Client(stack.grpc, stack.keys["demo-a"])
    client.metadata += ((name, "demo-b"),)

    error = refusal(client, chat_request("Hello!"))
    client.close()

    assert error.code() is Code.INVALID_ARGUMENT
    assert name in " ".join(violations(error))


def test_a_message_over_the_size_limit_is_refused_and_the_server_goes_on(alice: Client) -> None:
    error = refusal(alice, inference_pb2.GenerateRequest(text="x" * (8 << 20)))

    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert alice.ask("Still there?", max_new_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("length", [1, 15, 16, 17])
def test_prompts_around_a_page_are_served_cold_and_warm(bob: Client, length: int) -> None:
    request = tokens_request(range(100 + length, 100 + 2 * length), max_new_tokens=2)
    cold, warm = bob.generate(request), bob.generate(request)

    assert cold.token_ids == warm.token_ids
    assert (cold.cached, warm.cached) == (0, length - 1)
