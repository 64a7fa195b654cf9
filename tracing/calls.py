"""What is recorded of one call of a gateway: the call itself, and the stages that it goes through.

Belongs to the event loop. `Tracer` is chosen once for a process: where nothing is recorded, all of this does nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from tracing.sampling import Sampler
from tracing.spans import (
    Attribute,
    Attributes,
    Epoch,
    Kind,
    Span,
    SpanEvent,
    SpanSink,
    new_span_id,
    new_trace_id,
    shortened,
)
from tracing.traceparent import SpanContext, traceparent_in

Headers = Iterable[tuple[str, str | bytes]]
Describe = Callable[[], Attributes]
"""Makes attributes; called only where somebody wants them."""

MAX_STAGES = 256
"""Of one call. One over HTTP may bring many prompts, each with stages of its own; what is beyond is counted."""

_MAX_EVENTS = 32
_NO_LABELS: Mapping[str, str] = {}

# What the gateway is to blame for: the others are answers to what somebody asked.
_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class Stage(Protocol):
    """A part of a call that is under way."""

    @property
    def traceparent(self) -> str:
        """What carries the trace on to whom is called from here; "" where nothing is recorded."""
        ...

    def describe(self, make: Describe) -> None:
        """Add attributes."""
        ...

    def event(self, name: str) -> None:
        """Something happens just now."""
        ...


class CallTrace(Protocol):
    """One call. `end` comes last, once."""

    @property
    def labels(self) -> Mapping[str, str]:
        """What a line in the log says of the trace, if there is one."""
        ...

    def known(self, caller: str, make: Describe) -> None:
        """The caller has been recognised: by a name, which is nobody else's. Decides whether the call is recorded."""
        ...

    def stage(self, name: str, kind: Kind = Kind.INTERNAL) -> AbstractContextManager[Stage]:
        """Return a stage that lasts as long as the context, and is told how that is left."""
        ...

    def describe(self, make: Describe) -> None:
        """Add attributes to the call."""
        ...

    def sum_up(self, make: Describe) -> None:
        """Add attributes to the call; to numbers and tuples that it has, they are added."""
        ...

    def end(self, code: str, make: Describe) -> None:
        """The call was answered: with the name of a gRPC status, over HTTP too."""
        ...


class Tracer(Protocol):
    """Begins traces."""

    def begin(self, name: str, attributes: Attributes, headers: Headers, arrived_at: float) -> CallTrace:
        """A call has arrived, at `time.monotonic`."""
        ...


# ------------------------------------------------------------------------------------------------------- doing nothing


class _NoStage:
    traceparent = ""

    def describe(self, make: Describe) -> None:
        pass

    def event(self, name: str) -> None:
        pass

    def __enter__(self) -> "_NoStage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class _NoTrace:
    labels = _NO_LABELS

    def known(self, caller: str, make: Describe) -> None:
        pass

    def stage(self, name: str, kind: Kind = Kind.INTERNAL) -> _NoStage:
        return _NO_STAGE

    def describe(self, make: Describe) -> None:
        pass

    def sum_up(self, make: Describe) -> None:
        pass

    def end(self, code: str, make: Describe) -> None:
        pass


class NoTracer:
    """The tracer of a gateway that records nothing."""

    def begin(self, name: str, attributes: Attributes, headers: Headers, arrived_at: float) -> CallTrace:
        return NO_TRACE


_NO_STAGE = _NoStage()
NO_TRACE: CallTrace = _NoTrace()


# ----------------------------------------------------------------------------------------------------------- recording


class SamplingTracer:
    """Records the calls that its sampler takes, and hands each to a sink when it has ended."""

    def __init__(self, sampler: Sampler, sink: SpanSink) -> None:
        self._sampler = sampler
        self._sink = sink

    def begin(self, name: str, attributes: Attributes, headers: Headers, arrived_at: float) -> CallTrace:
        return _Trace(self._sampler, self._sink, name, attributes, traceparent_in(headers), arrived_at)


class _Trace:
    """A call that is recorded, or that nobody has decided about. Once one is not taken, it keeps nothing."""

    def __init__(
        self,
        sampler: Sampler,
        sink: SpanSink,
        name: str,
        attributes: Attributes,
        parent: SpanContext | None,
        arrived_at: float,
    ) -> None:
        self.epoch = Epoch()
        self._sampler = sampler
        self._sink = sink
        self._name = name
        self._attributes: dict[str, Attribute] = dict(attributes)
        self._parent = parent
        self._arrived_at = arrived_at
        self._context = SpanContext(parent.trace_id if parent is not None else new_trace_id(), new_span_id())
        self._spans: list[Span] = []
        self._num_stages = 0
        self._taken: bool | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """Of a trace that is recorded, here or by the caller."""
        recorded = self._taken or self._parent is not None
        return {"trace_id": self._context.trace_id} if recorded else _NO_LABELS

    def known(self, caller: str, make: Describe) -> None:
        asked = self._parent is not None and self._parent.sampled
        self._decided(self._sampler.takes(caller, asked=asked, now=time.monotonic()))
        self.describe(make)

    def stage(self, name: str, kind: Kind = Kind.INTERNAL) -> "_NoStage | _Stage":
        if self._taken is False:
            return _NO_STAGE
        self._num_stages += 1
        return _Stage(self, name, kind) if self._num_stages <= MAX_STAGES else _NO_STAGE

    def describe(self, make: Describe) -> None:
        if self._taken is not False:
            self._attributes.update(make())

    def sum_up(self, make: Describe) -> None:
        if self._taken is False:
            return
        for name, value in make().items():
            self._attributes[name] = _sum(self._attributes.get(name), value)

    def end(self, code: str, make: Describe) -> None:
        now = time.monotonic()
        if self._taken is None:
            self._decided(self._sampler.takes_stranger(now))
        if not self._taken:
            return
        self._attributes.update(make())
        if code != "OK":
            self._attributes["error.type"] = code
        if self._num_stages > MAX_STAGES:
            self._attributes["radixgate.omitted_stages"] = self._num_stages - MAX_STAGES
        root = Span(
            self._name,
            self._context,
            self._parent.span_id if self._parent is not None else None,
            self.epoch.ns(self._arrived_at),
            self.epoch.ns(max(now, self._arrived_at)),
            Kind.SERVER,
            shortened(self._attributes),
            error=code if code in _FAULTS else None,
        )
        self._sink.put((root, *self._spans))

    def _decided(self, taken: bool) -> None:
        self._taken = taken
        if not taken:
            self._spans, self._attributes = [], {}

    def child(self) -> SpanContext:
        """Return the name of a new span of this trace."""
        return SpanContext(self._context.trace_id, new_span_id())

    def ended(self, stage: "_Stage", context: SpanContext, start: float, error: str | None) -> None:
        if self._taken is False:
            return
        attributes = stage.attributes if error is None else {**stage.attributes, "error.type": error}
        self._spans.append(
            Span(
                stage.name,
                context,
                self._context.span_id,
                self.epoch.ns(start),
                self.epoch.ns(time.monotonic()),
                stage.kind,
                shortened(attributes),
                tuple(stage.events),
                error,
            )
        )


class _Stage:
    """One that is recorded, if its call is taken."""

    def __init__(self, trace: _Trace, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.attributes: dict[str, Attribute] = {}
        self.events: list[SpanEvent] = []
        self._trace = trace
        self._context = trace.child()
        self._started_at = 0.0

    @property
    def traceparent(self) -> str:
        return self._context.traceparent

    def describe(self, make: Describe) -> None:
        self.attributes.update(make())

    def event(self, name: str) -> None:
        if len(self.events) < _MAX_EVENTS:
            self.events.append(SpanEvent(name, self._trace.epoch.ns(time.monotonic())))

    def __enter__(self) -> "_Stage":
        self._started_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The kind alone: a message may quote the request.
        self._trace.ended(self, self._context, self._started_at, None if kind is None else kind.__name__)


def _sum(has: Attribute | None, more: Attribute) -> Attribute:
    if isinstance(has, tuple) and isinstance(more, tuple):
        return (*has, *more)[:MAX_STAGES]
    if isinstance(has, (int, float)) and isinstance(more, (int, float)):
        return has + more
    return more
