"""Which stream gets which sequence's news, and what waits for a gateway that reads slowly.

Everything here runs on the event loop; the engine's thread hands its steps over with `call_soon_threadsafe`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from radixgate.v1 import worker_pb2
from worker.engine.ports import CacheNews, Load, SequenceId, SequenceOutput
from worker.errors import Failure
from worker.rpc.cache_messages import digest_message, event_message
from worker.rpc.cache_outbox import CacheOutbox, FeedObserver, NullFeedObserver
from worker.rpc.load_board import LoadBoard
from worker.rpc.requests import OpenRequests
from worker.rpc.translate import error_message, num_completions, output_message

REPORT_GAP_S: Final = 0.05
"""Load and cache are told this often at most to gateways of which no sequence has news."""


class Link:
    """One gateway's stream. Owns the news that its gateway has not read yet, merged per completion.

    Invariant: what waits is bounded by the tokens of the link's own live sequences, however slowly the gateway reads,
    because a completion has at most one entry and ends after its max_new_tokens; of the cache, as `CacheOutbox` says.
    """

    def __init__(self, link_id: int, board: LoadBoard, cache: CacheOutbox) -> None:
        self.link_id = link_id
        self.cache = cache
        # By the gateway's ids of sequences: how many of their completions have not ended, as far as this link was told.
        self.live: dict[int, int] = {}
        self._board = board
        self._told_version = -1  # of the load
        self._waiting: dict[tuple[int, int], worker_pb2.SequenceOutput] = {}  # by sequence and completion
        self._adapters: worker_pb2.AdapterSet | None = None  # as they are now, if the gateway has not been told
        self._report_is_due = True
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
        if earlier is not None:
            _append(earlier, output)
            output = earlier
        if end == "error":
            # What waits of the other completions stands before it: behind it nobody listens.
            self._waiting.pop(completion, None)
        self._waiting[completion] = output
        self._news.set()

    @property
    def is_behind(self) -> bool:
        """Whether the worker has changed since its gateway was told of it."""
        return self._told_version != self._board.version or self.cache.waits

    def report(self) -> None:
        """Tell how busy the worker is, and what its cache holds, whether anything else is to be told or not."""
        self._report_is_due = True
        self._news.set()

    def report_adapters(self, adapters: worker_pb2.AdapterSet) -> None:
        """The worker has other adapters than the gateway was last told."""
        self._adapters = adapters
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def messages(self) -> AsyncIterator[worker_pb2.ConnectResponse]:
        """Yield one message for all news since the last, until the link is closed and everything is said.

        A snapshot makes several, a part in each, with what else there is in the meantime.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            message = self._next_message()
            if message is not None:
                yield message
            if self._closed and not self._waiting:
                return

    def _next_message(self) -> worker_pb2.ConnectResponse | None:
        outputs, self._waiting = self._waiting, {}
        adapters, self._adapters = self._adapters, None
        reports, self._report_is_due = self._report_is_due, False
        if not (outputs or adapters is not None or reports):
            return None
        message = worker_pb2.ConnectResponse(
            outputs=outputs.values(), load=self._board.message(self.link_id), adapters=adapters
        )
        self._told_version = self._board.version
        self.cache.fill(message)
        if reports:
            self.cache.fill_digest(message)
        if self.cache.waits:
            self.report()
        return message


class Links:
    """All open links of a worker. Ids are never used twice, so late news cannot reach a newer link."""

    def __init__(self, requests: OpenRequests | None = None, observer: FeedObserver | None = None) -> None:
        """`requests` is told of each that begins or ends, `observer` of what gateways are told of the cache."""
        self._requests = OpenRequests() if requests is None else requests
        self._observer = observer or NullFeedObserver()
        self._links: dict[int, Link] = {}
        self._next_id = 0
        self._adapters = worker_pb2.AdapterSet()
        self._digest: worker_pb2.CacheDigest | None = None
        self._reporting: asyncio.TimerHandle | None = None
        self._reported_at = 0.0  # on the loop's clock
        self.board = LoadBoard()

    def open(self) -> Link:
        cache = CacheOutbox(self._observer)
        if self._digest is not None:
            cache.changed([], self._digest)
        link = Link(self._next_id, self.board, cache)
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

    def deliver(self, outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None = None) -> None:
        """Hand one engine step's outputs to the links they belong to, and what has changed to all.

        A link that has outputs tells at once. The others do as soon as it is REPORT_GAP_S since they did.
        """
        self.board.put(load)
        if cache is not None:
            self._digest = digest_message(cache.digest)
            events = [event_message(event) for event in cache.events]
            for link in self._links.values():
                link.cache.changed(events, self._digest)
        for output in outputs:
            self._requests.told(output)
            link_id, _ = output.sequence_id
            owner = self._links.get(link_id)
            if owner is not None:
                owner.put(output_message(output))
        self._report_soon()

    def restart(self, links: Iterable[Link], parts: Sequence[worker_pb2.CacheSnapshot]) -> None:
        """Tell these all that the cache holds behind the last event that was delivered."""
        for link in links:
            if link.link_id in self._links:
                link.cache.restart(parts)
                link.report()

    def drain(self) -> None:
        """Tell every gateway, and those that come later, that no further requests are taken."""
        self.board.drain()
        self.report_all()

    async def report_every(self, interval_s: float) -> None:
        """Let every gateway hear from this worker at least so often, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.report_all()

    def report_all(self) -> None:
        for link in self._links.values():
            link.report()

    def _report_soon(self) -> None:
        if self._reporting is None and any(link.is_behind for link in self._links.values()):
            loop = asyncio.get_running_loop()
            self._reporting = loop.call_at(self._reported_at + REPORT_GAP_S, self._report_changes)

    def _report_changes(self) -> None:
        self._reporting = None
        self._reported_at = asyncio.get_running_loop().time()
        for link in self._links.values():
            if link.is_behind:
                link.report()

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
