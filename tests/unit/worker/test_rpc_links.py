import asyncio
from collections.abc import AsyncIterator

from hicache.cache import Hit
from radixgate.v1 import worker_pb2
from worker.batch import TokenLogprobs
from worker.engine.ports import Admission, FinishReason, Load, SequenceOutput
from worker.errors import Failure, FailureCode
from worker.rpc.links import Links

LOAD = Load(running=1, waiting=2, free_slots=3, evictable_slots=4, num_slots=10)
PATIENCE_S = 10.0


async def next_message(messages: AsyncIterator[worker_pb2.ConnectResponse]) -> worker_pb2.ConnectResponse:
    return await asyncio.wait_for(anext(messages), PATIENCE_S)


async def test_one_step_is_one_message_with_all_of_a_links_sequences() -> None:
    links = Links()
    link, other = links.open(), links.open()
    for number in range(8):
        link.expect(number)
    other.expect(1)

    links.deliver(
        [
            *(SequenceOutput((link.link_id, number), token_ids=(50 + number,)) for number in range(8)),
            SequenceOutput((other.link_id, 1), token_ids=(7,)),
        ],
        LOAD,
    )
    links.close_all()

    (message,) = [message async for message in link.messages()]
    assert [(o.sequence_id, list(o.token_ids)) for o in message.outputs] == [(n, [50 + n]) for n in range(8)]
    assert (message.load.running_sequences, message.load.num_slots) == (1, 10)
    (message,) = [message async for message in other.messages()]
    assert [(o.sequence_id, list(o.token_ids)) for o in message.outputs] == [(1, [7])]


async def test_news_that_nobody_has_read_is_merged_in_order() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    first = SequenceOutput((link.link_id, 1), (5,), "a", (TokenLogprobs(-1.0, ()),), Admission(9, Hit(device=8)))
    last = SequenceOutput((link.link_id, 1), (6,), "b", (TokenLogprobs(-2.0, ()),), finish=FinishReason.STOP)

    links.deliver([first], LOAD)
    links.deliver([last], LOAD)

    (output,) = (await next_message(link.messages())).outputs
    assert (list(output.token_ids), output.text) == ([5, 6], "ab")
    assert [entry.logprob for entry in output.logprobs] == [-1.0, -2.0]
    assert output.admission.cached.device == 8
    assert output.WhichOneof("end") == "finish_reason"


async def test_after_its_end_a_sequence_has_no_more_news() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    links.deliver([SequenceOutput((link.link_id, 1), finish=FinishReason.STOP)], LOAD)
    assert not link.live
    messages = link.messages()
    await next_message(messages)

    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(9,))], LOAD)
    links.close(link)

    assert [message async for message in messages] == []


async def test_news_for_a_link_that_is_gone_is_dropped() -> None:
    links = Links()
    gone = links.open()
    gone.expect(1)
    links.close(gone)
    newer = links.open()
    newer.expect(1)

    links.deliver([SequenceOutput((gone.link_id, 1), token_ids=(5,))], LOAD)
    links.close_all()

    assert newer.link_id != gone.link_id
    assert [output for message in [each async for each in newer.messages()] for output in message.outputs] == []


async def test_a_closed_link_still_says_what_it_had_to_say() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(5,))], LOAD)
    links.close(link)

    messages = [message async for message in link.messages()]

    assert [list(output.token_ids) for message in messages for output in message.outputs] == [[5]]


def adapter_set(*names: str) -> worker_pb2.AdapterSet:
    return worker_pb2.AdapterSet(adapters=[worker_pb2.Adapter(name=name) for name in names])


async def test_the_first_message_tells_the_adapters_even_if_there_are_none() -> None:
    links = Links()
    first = await next_message(links.open().messages())
    assert first.HasField("adapters")
    links.announce(adapter_set("poet"))
    second = await next_message(links.open().messages())
    assert second.adapters == adapter_set("poet")


async def test_each_change_of_the_adapters_is_told_and_the_last_one_counts() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    messages = link.messages()
    await next_message(messages)

    links.announce(adapter_set("poet"))
    links.announce(adapter_set("poet", "painter"))
    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(5,))], LOAD)

    message = await next_message(messages)
    assert message.adapters == adapter_set("poet", "painter")
    assert len(message.outputs) == 1
    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(6,))], LOAD)
    assert not (await next_message(messages)).HasField("adapters")


async def test_news_of_completions_are_merged_each_by_itself_until_the_last_has_ended() -> None:
    links = Links()
    link = links.open()
    link.expect(1, num_completions=2)
    sequence = (link.link_id, 1)
    links.deliver([SequenceOutput(sequence, (5,), "a"), SequenceOutput(sequence, (6,), "b", index=1)], LOAD)
    links.deliver([SequenceOutput(sequence, (7,), "c", finish=FinishReason.STOP)], LOAD)
    assert link.live
    links.deliver([SequenceOutput(sequence, (8,), "d", index=1, finish=FinishReason.LENGTH)], LOAD)
    assert not link.live

    outputs = (await next_message(link.messages())).outputs
    assert [(o.index, list(o.token_ids), o.text) for o in outputs] == [(0, [5, 7], "ac"), (1, [6, 8], "bd")]


async def test_an_error_is_told_once_for_all_completions() -> None:
    links = Links()
    link = links.open()
    link.expect(1, num_completions=3)
    failure = Failure(FailureCode.CANCELLED, "the request was cancelled")
    links.deliver([SequenceOutput((link.link_id, 1), finish=failure, index=index) for index in range(3)], LOAD)
    assert not link.live

    (output,) = (await next_message(link.messages())).outputs
    assert output.error.message == "the request was cancelled"


async def test_log_probabilities_of_a_prompt_are_merged_in_order() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    for value in (-1.0, -2.0):
        links.deliver([SequenceOutput((link.link_id, 1), prompt_logprobs=(TokenLogprobs(value, ()),))], LOAD)

    (output,) = (await next_message(link.messages())).outputs
    assert [entry.logprob for entry in output.prompt_logprobs] == [-1.0, -2.0]
