import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from hicache.cache import Hit
from hicache.events import CacheDigest, CacheEvent, EventKind, Snapshot, Tally
from hicache.keys import Namespace
from radixgate.v1 import worker_pb2
from tests.fakes.cache_reader import CacheReader
from worker.batch import TokenLogprobs
from worker.engine.ports import Admission, CacheNews, FinishReason, LinkLoad, Load, SequenceOutput
from worker.errors import Failure, FailureCode
from worker.rpc.links import REPORT_GAP_S, Links
from worker.rpc.snapshots import Snapshots

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


async def test_an_error_comes_behind_what_its_sequence_has_said_before() -> None:
    links = Links()
    link = links.open()
    link.expect(1, num_completions=2)
    sequence = (link.link_id, 1)
    failure = Failure(FailureCode.NOT_FOUND, "the adapter was unloaded")
    links.deliver([SequenceOutput(sequence, (5,), "a"), SequenceOutput(sequence, (6,), "b", index=1)], LOAD)
    links.deliver([SequenceOutput(sequence, (7,), "c", finish=failure)], LOAD)

    outputs = (await next_message(link.messages())).outputs
    assert [(o.index, list(o.token_ids), o.WhichOneof("end")) for o in outputs] == [
        (1, [6], None),
        (0, [5, 7], "error"),
    ]


async def test_log_probabilities_of_a_prompt_are_merged_in_order() -> None:
    links = Links()
    link = links.open()
    link.expect(1)
    for value in (-1.0, -2.0):
        links.deliver([SequenceOutput((link.link_id, 1), prompt_logprobs=(TokenLogprobs(value, ()),))], LOAD)

    (output,) = (await next_message(link.messages())).outputs
    assert [entry.logprob for entry in output.prompt_logprobs] == [-1.0, -2.0]


# Load


async def test_the_first_message_tells_the_load_if_the_engine_has_said_it() -> None:
    links = Links()
    assert not (await next_message(links.open().messages())).HasField("load")
    links.deliver([], LOAD)
    assert (await next_message(links.open().messages())).load.running_sequences == 1


async def test_a_change_of_the_load_is_told_to_a_link_without_sequences() -> None:
    links = Links()
    messages = links.open().messages()
    await next_message(messages)
    for running in range(2, 5):
        links.deliver([], replace(LOAD, running=running))
        assert (await next_message(messages)).load.running_sequences == running


async def test_changes_that_follow_one_another_closely_are_told_together() -> None:
    links, told = Links(), []
    link = links.open()

    async def read() -> None:
        told.extend([message.load.free_slots async for message in link.messages()])

    reader = asyncio.create_task(read())
    now = asyncio.get_running_loop().time
    began_at, free_slots = now(), 0
    while now() - began_at < 3 * REPORT_GAP_S:
        free_slots += 1
        links.deliver([], replace(LOAD, free_slots=free_slots))
        await asyncio.sleep(0)
    most = 3 + (now() - began_at) / REPORT_GAP_S
    links.close(link)
    await asyncio.wait_for(reader, PATIENCE_S)
    assert len(told) <= most
    assert told == sorted(told)


async def test_a_load_that_is_the_same_is_not_told_again() -> None:
    links = Links()
    link = links.open()
    messages = link.messages()
    links.deliver([], LOAD)
    await next_message(messages)
    for _ in range(3):
        links.deliver([], replace(LOAD))
        await asyncio.sleep(2 * REPORT_GAP_S)
    links.close(link)
    assert [message async for message in messages] == []


async def test_every_link_hears_from_the_worker_even_if_nothing_happens() -> None:
    links = Links()
    links.deliver([], LOAD)
    streams = [links.open().messages() for _ in range(2)]
    for stream in streams:
        await next_message(stream)
    reports = asyncio.create_task(links.report_every(0.01))
    for _ in range(3):
        for stream in streams:
            assert (await next_message(stream)).HasField("load")
    reports.cancel()


async def test_each_link_is_told_what_is_its_own() -> None:
    links = Links()
    one, other, idle = links.open(), links.open(), links.open()
    work = {one.link_id: LinkLoad(2, 300), other.link_id: LinkLoad(1, 50)}
    links.deliver([], replace(LOAD, links=work, prefill_tokens_per_s=9.0, load_tokens_per_s=8.0, step_s=0.5))
    loads = [(await next_message(link.messages())).load for link in (one, other, idle)]
    assert [load.pending_tokens for load in loads] == [350] * 3
    assert [(load.own_sequences, load.own_pending_tokens) for load in loads] == [(2, 300), (1, 50), (0, 0)]
    assert {(load.prefill_tokens_per_s, load.load_tokens_per_s, load.fetch_tokens_per_s) for load in loads} == {
        (9.0, 8.0, 0.0)
    }
    assert {load.step_s for load in loads} == {0.5}


async def test_for_how_long_nothing_has_moved_is_what_it_is_when_it_is_told() -> None:
    links, stalled_s = Links(), [0.0]
    links.board.watch(lambda: stalled_s[0])
    links.deliver([], LOAD)
    messages = links.open().messages()
    assert (await next_message(messages)).load.stalled_s == 0.0
    stalled_s[0] = 12.5
    links.report_all()
    assert (await next_message(messages)).load.stalled_s == 12.5


async def test_that_the_worker_drains_is_told_at_once_and_to_those_who_come_later() -> None:
    links = Links()
    links.deliver([], LOAD)
    messages = links.open().messages()
    assert not (await next_message(messages)).load.draining
    links.drain()
    told = await next_message(messages)
    assert told.load.draining
    assert not told.HasField("adapters")
    assert (await next_message(links.open().messages())).load.draining


# The cache


def news(*seqs: int) -> CacheNews:
    """Events, each of which stores a page of its own."""
    tally = Tally()
    for seq in range(1, seqs[-1] + 1):
        tally.add(seq.to_bytes(16, "little"))
    namespace = Namespace(bytes(16))
    events = [CacheEvent(seq, EventKind.STORED, "device", namespace, seq.to_bytes(16, "little")) for seq in seqs]
    return CacheNews(tuple(events), CacheDigest(seqs[-1], tally.digest()))


async def test_events_go_with_the_outputs_of_their_step() -> None:
    links = Links()
    link = links.open()
    messages = link.messages()
    await next_message(messages)
    link.expect(1)
    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(5,))], LOAD, news(1, 2))
    message = await next_message(messages)
    assert len(message.outputs) == 1
    assert [event.seq for event in message.cache_events] == [1, 2]


async def test_events_reach_a_link_without_sequences_in_order_and_with_their_digest() -> None:
    links, reader = Links(), CacheReader()
    links.deliver([], LOAD, CacheNews((), CacheDigest()))
    messages = links.open().messages()
    reader.read(await next_message(messages))
    for seq in range(1, 6):
        links.deliver([], LOAD, news(seq))
    while reader.seq < 5:
        reader.read(await next_message(messages))
    assert (reader.gaps, reader.num_events) == (0, 5)
    assert reader.digests[-1].seq == 5


async def test_a_new_link_learns_where_the_log_is_and_nothing_of_what_was() -> None:
    links = Links()
    links.deliver([], LOAD, news(1, 2, 3))
    message = await next_message(links.open().messages())
    assert not message.cache_events
    assert message.digest.seq == message.digest.device.num_pages == 3


async def test_a_snapshot_comes_part_by_part_and_outputs_do_not_wait_for_it() -> None:
    links = Links()
    links.deliver([], LOAD, news(1, 2, 3))
    link = links.open()
    messages = link.messages()
    await next_message(messages)
    link.expect(1)
    parts = [worker_pb2.CacheSnapshot(seq=3, part=part, last=part == 2) for part in range(3)]
    links.restart([link], parts)
    links.deliver([SequenceOutput((link.link_id, 1), token_ids=(5,))], LOAD, news(4))
    told = [await next_message(messages) for _ in range(4)]
    assert [message.snapshot for message in told[:3]] == parts
    assert len(told[0].outputs) == 1
    assert [event.seq for event in told[3].cache_events] == [4]
    assert told[3].digest.seq == 4


async def test_a_link_that_closes_while_it_waits_for_a_snapshot_is_told_nothing() -> None:
    links = Links()
    link = links.open()
    links.close(link)
    links.restart([link], [worker_pb2.CacheSnapshot(last=True)])
    assert not any([message.HasField("snapshot") async for message in link.messages()])


# Who asks for snapshots


class Answers:
    """An engine that answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Snapshot | None], None]] = []
        self.has_stopped = False

    def snapshot_cache(self, on_done: Callable[[Snapshot | None], None]) -> bool:
        if not self.has_stopped:
            self.waiting.append(on_done)
        return not self.has_stopped


async def test_those_who_ask_meanwhile_share_one_snapshot() -> None:
    links, engine = Links(), Answers()
    snapshots = Snapshots(engine, links)
    streams = []
    for _ in range(3):
        link = links.open()
        streams.append(link.messages())
        await next_message(streams[-1])
        snapshots.ask(link)
        snapshots.ask(link)
    (answer,) = engine.waiting
    answer(Snapshot(4, ()))
    assert [(await next_message(stream)).snapshot.seq for stream in streams] == [4] * 3
    snapshots.ask(link)
    assert len(engine.waiting) == 2


async def test_a_snapshot_that_failed_can_be_asked_for_again() -> None:
    links, engine = Links(), Answers()
    snapshots, link = Snapshots(engine, links), links.open()
    snapshots.ask(link)
    engine.waiting.pop()(None)
    await asyncio.sleep(0)
    snapshots.ask(link)
    assert len(engine.waiting) == 1
    engine.has_stopped = True
    other = links.open()
    snapshots.ask(other)
    assert len(engine.waiting) == 1
