"""Which stream gets which sequence's news, and what waits for a gateway that reads slowly.

Everything here runs on the event loop; the engine's thread hands its steps over with `call_soon_threadsafe`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from radixgate.v1 import worker_pb2
from worker.engine.ports import Load, SequenceId, SequenceOutput
from worker.errors import Failure
from worker.rpc.requests import OpenRequests
from worker.rpc.translate import error_message, load_message, num_completions, output_message


class Link:
    """One gateway's stream. Owns the news that its gateway has not read yet, merged per completion.

    Invariant: what waits is bounded by the tokens of the link's own live sequences, however slowly the gateway reads,
    because a completion has at most one entry and ends after its max_new_tokens.
    """

    def __init__(self, link_id: int) -> None:
        self.link_id = link_id
        # By the gateway's ids of sequences: how many of their completions have not ended, as far as this link was told.
        self.live: dict[int, int] = {}
        self._waiting: dict[tuple[int, int], worker_pb2.SequenceOutput] = {}  # by sequence and completion
        self._load: worker_pb2.WorkerLoad | None = None
        self._adapters: worker_pb2.AdapterSet | None = None  # as they are now, if the gateway has not been told
        self._news = asyncio.Event()
        self._closed = False

    def expect(self, sequence_id: int, num_completions: int = 1) -> None:
        """A sequence of this link's begins."""
        self.live[sequence_id] = num_completions

    def put(self, output: worker_pb2.SequenceOutput) -> None:
        """Add news of one completion; forgotten when its sequence is none of this link's, or has ended."""
        sequence_id = output.sequence_id
        if sequence_id not in self.live:
            return
        end = output.WhichOneof("end")
        if end is not None:
            self.live[sequence_id] -= 1
        if end == "error" or self.live[sequence_id] == 0:  # an error is told once for all completions
            del self.live[sequence_id]
        completion = (sequence_id, output.index)
        earlier = self._waiting.get(completion)
        if earlier is None:
            self._waiting[completion] = output
        else:
            _append(earlier, output)
        self._news.set()

    def report_load(self, load: worker_pb2.WorkerLoad) -> None:
        """The load travels with the next news; alone it is not worth a message."""
        self._load = load

    def report_adapters(self, adapters: worker_pb2.AdapterSet) -> None:
        """The worker has other adapters than the gateway was last told."""
        self._adapters = adapters
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def messages(self) -> AsyncIterator[worker_pb2.ConnectResponse]:
        """Yield one message for all news since the last, until the link is closed and everything is said."""
        while True:
            await self._news.wait()
            self._news.clear()
            outputs, self._waiting = self._waiting, {}
            adapters, self._adapters = self._adapters, None
            if outputs or adapters is not None:
                yield worker_pb2.ConnectResponse(outputs=outputs.values(), load=self._load, adapters=adapters)
            if self._closed and not self._waiting:
                return


class Links:
    """All open links of a worker. Ids are never used twice, so late news cannot reach a newer link."""

    def __init__(self, requests: OpenRequests | None = None) -> None:
        """`requests` is told of each that begins or ends."""
        self._requests = OpenRequests() if requests is None else requests
        self._links: dict[int, Link] = {}
        self._next_id = 0
        self._adapters = worker_pb2.AdapterSet()

    def open(self) -> Link:
        link = Link(self._next_id)
        self._links[link.link_id] = link
        self._next_id += 1
        link.report_adapters(self._adapters)
        return link

    def began(self, link: Link, submit: worker_pb2.Submit) -> SequenceId:
        """A link's gateway has sent a request: return by which id it is known from now on."""
        link.expect(submit.sequence_id, num_completions(submit))
        sequence_id = (link.link_id, submit.sequence_id)
        self._requests.began(sequence_id, submit)
        return sequence_id

    def close(self, link: Link) -> None:
        link.close()
        self._links.pop(link.link_id, None)

    def close_all(self) -> None:
        for link in list(self._links.values()):
            self.close(link)

    def announce(self, adapters: worker_pb2.AdapterSet) -> None:
        """Tell every gateway, and those that come later, which adapters there are now."""
        self._adapters = adapters
        for link in self._links.values():
            link.report_adapters(adapters)

    def deliver(self, outputs: Sequence[SequenceOutput], load: Load) -> None:
        """Hand one engine step's outputs to the links they belong to."""
        load_report = load_message(load)
        for link in self._links.values():
            link.report_load(load_report)
        for output in outputs:
            self._requests.told(output)
            link_id, _ = output.sequence_id
            owner = self._links.get(link_id)
            if owner is not None:
                owner.put(output_message(output))

    def refuse(self, sequence_id: SequenceId, failure: Failure) -> None:
        """Tell the owner of a sequence that it has ended before the engine knew of it."""
        self._requests.refused(sequence_id, failure)
        link_id, number = sequence_id
        owner = self._links.get(link_id)
        if owner is not None:
            owner.put(worker_pb2.SequenceOutput(sequence_id=number, error=error_message(failure)))


def _append(earlier: worker_pb2.SequenceOutput, later: worker_pb2.SequenceOutput) -> None:
    # MergeFrom appends repeated fields and replaces scalars, so the text must be joined by hand.
    text = earlier.text + later.text
    earlier.MergeFrom(later)
    earlier.text = text
