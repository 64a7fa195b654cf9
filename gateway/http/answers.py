"""Answers, whole or streamed: all that the pipeline says about one HTTP request, on its way to the client."""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from gateway.dispatch.catalogue import ServedModel
from gateway.errors import InvalidRequestError, Violation
from gateway.http.asked import Asked
from gateway.http.errors import Json
from gateway.http.forms import Completion, Form, Message, usage_of
from gateway.http.reply import Reply, dumped, event
from radixgate.v1 import inference_pb2

# Has something written, of so many bytes as messages, where that keeps nobody else waiting.
WriteDown = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]

_SIMULATED: Final = "radixgate-simulated"


def fingerprint_of(model: ServedModel) -> str:
    """Return what answers say of what computed them: another word with other weights, and one of its own for none."""
    return _SIMULATED if model.simulated else f"fp_{model.fingerprint.hex()[:12]}"


class Answer(Protocol):
    """What is made of the messages of all completions."""

    async def take(self, index: int, message: Message) -> None: ...

    async def end(self) -> None:
        """All completions have ended."""
        ...


class Heading:
    """What each document of an answer begins with."""

    def __init__(self, form: Form, request_id: str, model: str, fingerprint: str) -> None:
        self._common = {
            "id": form.id_prefix + request_id,
            "object": "",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def over(self, kind: str, choices: Sequence[Json], **more: object) -> Json:
        return {**self._common, "object": kind, "choices": choices, **more}


class WholeAnswer:
    """One document, when everything is there."""

    def __init__(self, form: Form, heading: Heading, reply: Reply, write_down: WriteDown, max_bytes: int) -> None:
        """`max_bytes`: of all messages together."""
        self._form = form
        self._heading = heading
        self._reply = reply
        self._write_down = write_down
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._completions: defaultdict[int, Completion] = defaultdict(Completion)
        self._usages: list[inference_pb2.Usage] = []

    async def take(self, index: int, message: Message) -> None:
        self._num_bytes += message.ByteSize()
        if self._num_bytes > self._max_bytes:
            told = f"must be true for this answer: it has more than {self._max_bytes} bytes, the most that are kept"
            raise InvalidRequestError([Violation("stream", told)])
        self._completions[index].add(message)
        if message.HasField("usage"):
            self._usages.append(message.usage)

    async def end(self) -> None:
        await self._reply.written(200, await self._write_down(self._num_bytes, self._document))

    def _document(self) -> bytes:
        choices = [self._form.choice(index, completion) for index, completion in sorted(self._completions.items())]
        return dumped(self._heading.over(self._form.whole_object, choices, usage=usage_of(self._usages)))


class StreamedAnswer:
    """Events, as things come."""

    def __init__(self, asked: Asked, form: Form, heading: Heading, reply: Reply, write_down: WriteDown) -> None:
        self._include_usage = asked.include_usage
        self._form = form
        self._heading = heading
        self._reply = reply
        self._write_down = write_down
        self._begun: set[int] = set()
        self._usages: list[inference_pb2.Usage] = []
        self._more: Json = {"usage": None} if asked.include_usage else {}  # until there is one

    async def take(self, index: int, message: Message) -> None:
        is_first = index not in self._begun
        self._begun.add(index)
        if message.HasField("usage"):
            self._usages.append(message.usage)

        def events() -> bytes:
            choices = self._form.deltas(index, message, is_first=is_first)
            return b"".join(event(self._chunk([choice], **self._more)) for choice in choices)

        if written := await self._write_down(message.ByteSize(), events):
            await self._reply.events(written)

    async def end(self) -> None:
        if self._include_usage:
            await self._reply.events(event(self._chunk([], usage=usage_of(self._usages))))
        await self._reply.end_events()

    def _chunk(self, choices: list[Json], **more: object) -> Json:
        return self._heading.over(self._form.chunk_object, choices, **more)
