"""The tokens of one request on their way from a worker's stream to the client's.

Belongs to the event loop; knows neither connection, and not how many workers there were. The worker's side feeds, the
client's side takes; whatever has come of a completion in between is merged, so a slow reader costs messages nothing and
memory at most `max_unread_bytes`.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.dispatch.pace import Pace
from gateway.errors import CancelledRequestError, GatewayError, InternalError, OverloadedError
from radixgate.v1 import inference_pb2, worker_pb2


class Delta:
    """What has come of one completion since it was last asked for.

    Collected in plain lists, and a message only once somebody takes it: most of what is added is one token more.
    """

    __slots__ = (
        "_logprobs",
        "_prompt_logprobs",
        "_text",
        "_token_ids",
        "admission",
        "finish_reason",
        "index",
        "num_bytes",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.admission: worker_pb2.Admission | None = None
        self.finish_reason: inference_pb2.FinishReason.ValueType = inference_pb2.FINISH_REASON_UNSPECIFIED
        self.num_bytes = 0  # of the worker's messages
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[inference_pb2.TokenLogprobs] = []
        self._prompt_logprobs: list[inference_pb2.TokenLogprobs] = []

    def add(self, output: worker_pb2.SequenceOutput, num_bytes: int) -> None:
        """Take one step's news, of `num_bytes`."""
        self.num_bytes += num_bytes
        self._token_ids += output.token_ids
        self._text.append(output.text)
        # Copies of everything that is a message: a part of the worker's keeps the whole step's message alive.
        if output.logprobs:
            self._logprobs += map(_copy, output.logprobs)
        if output.prompt_logprobs:
            self._prompt_logprobs += map(_copy, output.prompt_logprobs)
        if output.HasField("admission"):
            self.admission = worker_pb2.Admission()
            self.admission.CopyFrom(output.admission)
        self.finish_reason = output.finish_reason

    def message(self, request_id: str) -> inference_pb2.GenerateResponse:
        """Return all of it as the client gets it."""
        return inference_pb2.GenerateResponse(
            request_id=request_id,
            token_ids=self._token_ids,
            text="".join(self._text),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            finish_reason=self.finish_reason,
            index=self.index,
        )

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason != inference_pb2.FINISH_REASON_UNSPECIFIED


def _copy(logprobs: inference_pb2.TokenLogprobs) -> inference_pb2.TokenLogprobs:
    copied = inference_pb2.TokenLogprobs()
    copied.CopyFrom(logprobs)
    return copied


class TokenStream:
    """One request's stream, of all its completions. It ends when each of them has, or with the first error.

    Invariant: once it has ended nothing is added, and `on_close` has been called once. The news of completions are
    taken in the order in which they first had some, so none of them waits for ever.

    Use with `with`: leaving before the end cancels the sequence at its worker.
    """

    def __init__(
        self,
        on_close: Callable[[bool], None],
        *,
        pace: Pace,
        max_unread_bytes: int,
        num_completions: int = 1,
        simulated: bool = False,
    ) -> None:
        """`on_close(True)` is called when the worker has nothing more to say, `on_close(False)` when it must stop.

        `simulated`: whether what comes means nothing.
        """
        self.simulated = simulated
        self._on_close = on_close
        self._pace = pace
        pace.opened()
        self._max_unread_bytes = max_unread_bytes
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pending: dict[int, Delta] = {}  # by completion
        self._unfinished = set(range(num_completions))
        self._unread_bytes = 0  # of what is pending
        self._taken_at = float("-inf")
        self._error: GatewayError | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether nothing more is added. What has been may not have been taken yet."""
        return self._ended

    # ------------------------------------------------------------------------------------------- the worker's side

    def feed(self, output: worker_pb2.SequenceOutput) -> None:
        """Take one step's news of one completion; errors are for `fail`."""
        if self._ended or output.index not in self._unfinished:
            return
        num_bytes = output.ByteSize()
        self._unread_bytes += num_bytes
        if self._unread_bytes > self._max_unread_bytes:
            self._pending = {}
            self._end(_reads_too_slowly(self._max_unread_bytes), worker_is_done=False)
            return
        delta = self._pending.get(output.index)
        if delta is None:
            delta = self._pending[output.index] = Delta(output.index)
        delta.add(output, num_bytes)
        if output.HasField("finish_reason"):
            self._unfinished.remove(output.index)
        if self._unfinished:
            self._announce()
        else:
            self._end(None, worker_is_done=True)

    def fail(self, error: GatewayError) -> None:
        """The worker will say nothing more."""
        self._end(error, worker_is_done=True)

    def _end(self, error: GatewayError | None, *, worker_is_done: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._pace.closed()
        self._wake()
        self._on_close(worker_is_done)

    def _announce(self) -> None:
        """Wake the reader now, or a little later if it has only just taken something."""
        if self._timer is not None:
            return
        wake_at = self._taken_at + self._pace.window_s
        if self._loop.time() >= wake_at:
            self._wake()
        else:
            self._timer = self._loop.call_at(wake_at, self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._news.set()

    # ------------------------------------------------------------------------------------------- the client's side

    async def take(self) -> Delta:
        """Wait for news and return all there is of one completion.

        The last delta of each is `finished`. Raises the GatewayError that ended the stream instead; what came before
        it is returned first.
        """
        await self._news.wait()
        while not self._pending and not self._ended:  # woken for what had been taken already
            self._news.clear()
            await self._news.wait()
        self._taken_at = self._loop.time()
        delta = self._pending.pop(next(iter(self._pending))) if self._pending else None
        if not self._pending and not self._ended:  # else whoever asks again is told at once
            self._news.clear()
        if delta is not None:
            self._unread_bytes -= delta.num_bytes
            return delta
        raise self._error or InternalError("the stream was read beyond its end")

    def close(self) -> None:
        """Nobody reads any more. Closing twice, or after the end, is harmless."""
        self._end(CancelledRequestError("the request was cancelled"), worker_is_done=False)
        self._wake()
        self._pending = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _reads_too_slowly(limit: int) -> GatewayError:
    return OverloadedError(
        f"the client reads too slowly: over {limit} bytes of output were waiting for it",
        reason="CLIENT_READS_TOO_SLOWLY",
    )
