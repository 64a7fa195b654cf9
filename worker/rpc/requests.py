"""The requests that are here, from their arrival to their end: what is logged of that, and recorded as spans.

Everything here runs on the event loop. Whoever sent a request may be gone by its end; it is told here all the same.
"""

import logging
import time
from dataclasses import dataclass

import structlog

from radixgate.v1 import worker_pb2
from tracing.spans import NoSpans, SpanSink
from tracing.traceparent import SpanContext, parse_traceparent
from worker.engine.ports import FinishReason, SequenceId, SequenceOutput
from worker.engine.timeline import Timeline
from worker.errors import Failure
from worker.rpc.spans import SequenceSpans
from worker.rpc.translate import num_completions

_log = structlog.get_logger(__name__)
_level = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    request_id: str
    spans: SequenceSpans | None  # None: it is not traced


class OpenRequests:
    """Invariant: holds a request from `began` until the end of the last of its completions was told."""

    def __init__(self, worker_id: str = "", sink: SpanSink | None = None) -> None:
        self._worker_id = worker_id
        self._sink = sink or NoSpans()
        self._open: dict[SequenceId, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def began(self, sequence_id: SequenceId, submit: worker_pb2.Submit) -> None:
        """A request has arrived."""
        parent = parse_traceparent(submit.traceparent) if submit.traceparent and self._sink.wanted else None
        spans = self._spans(parent, submit) if parent is not None and parent.sampled else None
        self._open[sequence_id] = _Open(submit.request_id, spans)

    def refused(self, sequence_id: SequenceId, failure: Failure) -> None:
        """A request has ended before the engine knew of it."""
        self._ended(sequence_id, 0, None, failure)

    def told(self, output: SequenceOutput) -> None:
        """The engine has news of one; look whether it ends."""
        if output.admission is not None:
            request = self._open.get(output.sequence_id)
            if request is not None and request.spans is not None:
                request.spans.admitted(output.admission)
        if output.finish is not None:
            self._ended(output.sequence_id, output.index, output.timeline, output.finish)

    def _spans(self, parent: SpanContext, submit: worker_pb2.Submit) -> SequenceSpans:
        about = {
            "radixgate.request_id": submit.request_id,
            "radixgate.tenant": submit.tenant,
            "radixgate.adapter": submit.adapter,
            "radixgate.worker": self._worker_id,
        }
        num_inherited = sum([len(each.token_ids) for each in submit.continued])
        return SequenceSpans(parent, about, num_completions(submit), time.monotonic(), num_inherited)

    def _ended(
        self, sequence_id: SequenceId, index: int, timeline: Timeline | None, finish: FinishReason | Failure
    ) -> None:
        request = self._open.get(sequence_id)
        if request is None:
            return
        outcome = finish.code.value if isinstance(finish, Failure) else finish.value
        if timeline is None or timeline.is_last:
            del self._open[sequence_id]
        if _level.isEnabledFor(logging.DEBUG):
            _log.debug(
                "sequence ended", request_id=request.request_id, index=index, end=outcome, **_summary(timeline)
            )  # fmt: skip
        if request.spans is not None:
            error = outcome if isinstance(finish, Failure) else None
            self._sink.put(request.spans.ended(index, timeline, outcome, error, time.monotonic()))


def _summary(timeline: Timeline | None) -> dict[str, object]:
    """Return a timeline as fields of a line in the log."""
    if timeline is None:
        return {}
    first = timeline.first_token_at
    return {
        "output_tokens": timeline.num_tokens,
        "pauses": timeline.num_pauses,
        "seconds": round(timeline.ended_at - timeline.began_at, 6),
        **({"first_token_s": round(first - timeline.began_at, 6)} if first is not None else {}),
        **{f"{phase.value}_s": round(seconds, 6) for phase, seconds in timeline.seconds.items()},
    }
