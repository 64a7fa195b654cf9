"""Between worker and client: merging, order, bounds, and the one end that every stream has."""

import asyncio

import pytest

from gateway.dispatch.pace import Pace
from gateway.dispatch.stream import TokenStream
from gateway.errors import CancelledRequestError, InternalError, OverloadedError, UnavailableError
from radixgate.v1 import inference_pb2, worker_pb2

STOP = inference_pb2.FINISH_REASON_STOP


class Worker:
    """What the stream tells its worker's side."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def stream(
        self, num_completions: int = 1, *, coalesce_s: float = 0.0, max_unread_bytes: int = 1 << 20
    ) -> TokenStream:
        self.pace = Pace(coalesce_s, coalesce_s, 1.0)
        return TokenStream(
            self.told.append,
            num_completions=num_completions,
            pace=self.pace,
            max_unread_bytes=max_unread_bytes,
        )


def tokens(
    *token_ids: int, text: str = "", index: int = 0, end: "inference_pb2.FinishReason.ValueType | None" = None
) -> worker_pb2.SequenceOutput:
    output = worker_pb2.SequenceOutput(token_ids=token_ids, text=text, index=index)
    if end is not None:
        output.finish_reason = end
    return output


async def test_what_comes_while_nobody_reads_is_one_message() -> None:
    stream = Worker().stream()
    for i in range(5):
        stream.feed(tokens(i, text=f"{i} "))
    delta = await stream.take()
    assert (list(delta.message("r").token_ids), delta.message("r").text) == ([0, 1, 2, 3, 4], "0 1 2 3 4 ")


async def test_log_probabilities_stay_beside_their_tokens() -> None:
    stream = Worker().stream()
    for i in range(2):
        output = tokens(i)
        output.logprobs.add(logprob=-i - 1.0)
        stream.feed(output)
    assert [entry.logprob for entry in (await stream.take()).message("r").logprobs] == [-1.0, -2.0]


async def test_admission_comes_with_the_first_chunk_only() -> None:
    stream = Worker().stream()
    stream.feed(worker_pb2.SequenceOutput(token_ids=[1], admission=worker_pb2.Admission(prompt_tokens=7)))
    first = await stream.take()
    assert first.admission is not None
    assert first.admission.prompt_tokens == 7
    stream.feed(tokens(2))
    assert (await stream.take()).admission is None


async def test_the_first_tokens_do_not_wait_and_the_next_ones_share_a_message() -> None:
    stream = Worker().stream(coalesce_s=0.05)
    loop = asyncio.get_running_loop()
    stream.feed(tokens(1))
    started = loop.time()
    await stream.take()
    assert loop.time() - started < 0.04
    stream.feed(tokens(2))
    late = loop.call_later(0.01, stream.feed, tokens(3))
    delta = await stream.take()
    assert list(delta.message("r").token_ids) == [2, 3]
    assert loop.time() - started >= 0.05
    late.cancel()


async def test_the_end_waits_for_nothing() -> None:
    stream = Worker().stream(coalesce_s=30.0)
    stream.feed(tokens(1))
    await stream.take()
    stream.feed(tokens(2))
    stream.feed(tokens(3, end=STOP))
    delta = await asyncio.wait_for(stream.take(), 5)
    assert list(delta.message("r").token_ids) == [2, 3]
    assert delta.finished


async def test_an_end_is_told_once_and_nothing_follows_it() -> None:
    worker = Worker()
    with worker.stream() as stream:
        stream.feed(tokens(1, end=STOP))
        stream.feed(tokens(2))
        stream.fail(InternalError("late"))
        assert list((await stream.take()).message("r").token_ids) == [1]
    assert worker.told == [True]


async def test_leaving_before_the_end_stops_the_worker() -> None:
    worker = Worker()
    with worker.stream() as stream:
        stream.feed(tokens(1))
    stream.close()
    assert worker.told == [False]
    with pytest.raises(CancelledRequestError):
        await stream.take()


async def test_tokens_before_a_failure_are_delivered_before_it() -> None:
    stream = Worker().stream()
    stream.feed(tokens(1))
    stream.fail(UnavailableError("gone"))
    assert list((await stream.take()).message("r").token_ids) == [1]
    for _ in range(2):
        with pytest.raises(UnavailableError, match="gone"):
            await stream.take()


async def test_a_waiting_reader_hears_of_a_failure() -> None:
    stream = Worker().stream()
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.fail(UnavailableError("gone"))
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(reader, 5)


async def test_a_reader_that_never_reads_costs_bounded_memory_and_then_its_stream() -> None:
    worker = Worker()
    stream = worker.stream(max_unread_bytes=4096)
    for _ in range(2000):
        stream.feed(tokens(*range(10), text="ten tokens"))
    assert worker.told == [False]
    with pytest.raises(OverloadedError, match="4096 bytes") as refusal:
        await stream.take()
    assert refusal.value.reason == "CLIENT_READS_TOO_SLOWLY"


async def test_a_reader_that_keeps_up_may_read_any_amount() -> None:
    stream = Worker().stream(max_unread_bytes=4096)
    for _ in range(200):
        stream.feed(tokens(*range(100)))
        assert (await stream.take()).num_tokens == 100


async def test_chunks_are_copies_that_do_not_keep_the_workers_message() -> None:
    output = tokens(1, text="a")
    output.logprobs.add(logprob=-1.0)
    stream = Worker().stream()
    stream.feed(output)
    output.token_ids[0] = 99
    output.logprobs[0].logprob = -99.0
    delta = await stream.take()
    assert (delta.message("r").token_ids[0], delta.message("r").logprobs[0].logprob) == (1, -1.0)


async def test_an_end_without_a_reason_does_not_leave_the_reader_waiting() -> None:
    stream = Worker().stream()
    stream.feed(tokens(1, end=inference_pb2.FINISH_REASON_UNSPECIFIED))
    assert not (await stream.take()).finished
    with pytest.raises(InternalError):
        await asyncio.wait_for(stream.take(), 5)


async def test_completions_are_merged_each_by_itself_and_taken_in_turn() -> None:
    stream = Worker().stream(2)
    for token in range(3):
        stream.feed(tokens(token, index=0))
        stream.feed(tokens(10 + token, index=1))
    first = await stream.take()
    stream.feed(tokens(3, index=0))
    taken = [first, await stream.take(), await stream.take()]
    assert [(delta.message("r").index, list(delta.message("r").token_ids)) for delta in taken] == [
        (0, [0, 1, 2]),
        (1, [10, 11, 12]),
        (0, [3]),
    ]


async def test_a_stream_ends_with_its_last_completion() -> None:
    worker = Worker()
    stream = worker.stream(3)
    for index in (1, 0):
        stream.feed(tokens(index, index=index, end=STOP))
        assert (await stream.take()).finished
        assert worker.told == []
    stream.feed(tokens(2, index=2, end=STOP))
    assert worker.told == [True]
    assert (await stream.take()).finished


async def test_nothing_follows_the_end_of_a_completion() -> None:
    stream = Worker().stream(2)
    stream.feed(tokens(1, index=0, end=STOP))
    stream.feed(tokens(2, index=0))
    stream.feed(tokens(3, index=7))
    assert list((await stream.take()).message("r").token_ids) == [1]
    stream.fail(UnavailableError("gone"))
    with pytest.raises(UnavailableError):
        await stream.take()


async def test_a_failure_ends_all_completions() -> None:
    worker = Worker()
    stream = worker.stream(2)
    stream.feed(tokens(1, index=0))
    stream.fail(CancelledRequestError("no"))
    assert worker.told == [True]
    assert list((await stream.take()).message("r").token_ids) == [1]
    with pytest.raises(CancelledRequestError):
        await stream.take()


async def test_what_was_taken_early_does_not_end_the_next_wait() -> None:
    stream = Worker().stream(2, coalesce_s=0.02)
    stream.feed(tokens(1, index=0))
    await stream.take()
    stream.feed(tokens(2, index=0))
    stream.feed(tokens(3, index=1))  # both are announced by one timer
    assert [(await stream.take()).message("r").index for _ in range(2)] == [0, 1]
    asyncio.get_running_loop().call_later(0.05, stream.feed, tokens(4, index=1, end=STOP))
    assert list((await stream.take()).message("r").token_ids) == [4]


async def test_the_bound_on_what_is_unread_counts_all_completions_and_forgets_what_was_read() -> None:
    stream = Worker().stream(64, max_unread_bytes=4096)
    for index in range(64):
        stream.feed(tokens(*range(100), index=index))
        if index % 8 == 7:
            for _ in range(8):
                assert (await stream.take()).num_tokens == 100
    for index in range(64):
        stream.feed(tokens(*range(100), index=index))
    with pytest.raises(OverloadedError):
        await stream.take()


async def test_log_probabilities_of_the_prompt_are_merged_in_order() -> None:
    stream = Worker().stream()
    for value in (-1.0, -2.0):
        output = worker_pb2.SequenceOutput()
        output.prompt_logprobs.add(logprob=value)
        stream.feed(output)
    message = (await stream.take()).message("r")
    assert [entry.logprob for entry in message.prompt_logprobs] == [-1.0, -2.0]
