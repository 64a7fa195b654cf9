"""Cancelled, late and vanished requests give back slots, leases and streams."""

import grpc
import pytest

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Client, Stack, chat_request, tokens_request
from tests.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def assert_back_to_zero(stack: Stack) -> None:
    def at_rest() -> bool:
        return (
            stack.total("radixgate_running_sequences") == 0
            and stack.total("radixgate_waiting_sequences") == 0
            and stack.total("radixgate_slots", state="in_use") == 0
            and stack.total("radixgate_gateway_open_streams") == 0
        )

    wait_until(at_rest, timeout_s=15, what="no sequence, slot or stream in use")


def endless(request: inference_pb2.GenerateRequest) -> inference_pb2.GenerateRequest:
    """Go on until somebody ends it: an answer that is over by itself would prove nothing."""
    request.sampling.ignore_eos = True
    return request


def test_a_client_that_cancels_at_its_fifth_token(stack: Stack, alice: Client) -> None:
    stream = alice.stream(endless(chat_request("Tell me a very long story.", max_new_tokens=1000)))
    received = 0
    for response in stream:
        received += len(response.token_ids)
        if received >= 5:
            stream.cancel()
            break

    assert_back_to_zero(stack)
    assert stack.total("radixgate_sequences_finished_total", outcome="cancelled") >= 1


def test_a_deadline_that_passes_while_tokens_flow(stack: Stack, alice: Client) -> None:
    with pytest.raises(grpc.RpcError) as late:
        list(alice.stream(endless(chat_request("Tell me a long story.", max_new_tokens=2000)), timeout_s=1.5))

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert_back_to_zero(stack)


def test_deadlines_that_pass_in_the_queue(stack: Stack, alice: Client, bob: Client) -> None:
    """The pool holds one of the long sequences at a time; the others wait until their time is up."""
    blocker = bob.stream(endless(tokens_request(range(3000), max_new_tokens=1000)))
    assert next(iter(blocker)).token_ids
    late = [alice.stream(tokens_request([i] * 3000, max_new_tokens=1000), timeout_s=1.0) for i in range(3)]
    for stream in late:
        with pytest.raises(grpc.RpcError) as error:
            list(stream)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    blocker.cancel()

    assert_back_to_zero(stack)


def test_a_client_that_vanishes(stack: Stack) -> None:
    client = Client(stack.grpc, stack.keys["demo-a"])
    stream = client.stream(endless(chat_request("Tell me another long story.", max_new_tokens=1000)))
    assert next(iter(stream))
    client.close()

    assert_back_to_zero(stack)
