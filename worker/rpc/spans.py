"""Timelines of one request's completions as spans of its trace.

sequence                     from its arrival at this worker to the end of its last completion
 ├─ queue ─ prefetch         until it starts; as long as it waited for storage
 ├─ match                    the step in which the cache was asked was being decided
 ├─ load                     what lay on the host was on its way
 ├─ prefill                  until the first token
 ├─ decode, pause, …         until its end
 └─ completion 1, 2, …       the other completions, where there are several; each with phases of its own
"""

from dataclasses import dataclass, field

from tracing.spans import Attribute, Epoch, Kind, Span, new_span_id, shortened
from tracing.traceparent import SpanContext
from worker.engine.ports import Admission
from worker.engine.timeline import Phase, PhaseInterval, Timeline


@dataclass(slots=True)
class SequenceSpans:
    """What is recorded of one request. All its moments are turned into times of day by one reading of the clocks."""

    parent: SpanContext
    about: dict[str, str]
    num_completions: int
    arrived_at: float  # monotonic, before the engine knew of it
    num_inherited: int = 0  # tokens of completions that were begun elsewhere
    epoch: Epoch = field(default_factory=Epoch)
    span_id: str = field(default_factory=new_span_id)
    _admission: Admission | None = None
    _num_tokens: int = 0
    _outcomes: list[str] = field(default_factory=list)

    def admitted(self, admission: Admission) -> None:
        self._admission = admission

    def ended(
        self, index: int, timeline: Timeline | None, outcome: str, error: str | None, now: float
    ) -> tuple[Span, ...]:
        """Return the spans of a completion that has ended; with the last one, that of the request."""
        self._outcomes.append(outcome)
        spans: list[Span] = []
        if timeline is not None:
            self._num_tokens += timeline.num_tokens
            spans += self._phases(timeline) if index == 0 else self._completion(index, timeline, outcome, error)
        if timeline is None or timeline.is_last:
            spans.append(self._request(timeline, error, now))
        return tuple(spans)

    def _request(self, timeline: Timeline | None, error: str | None, now: float) -> Span:
        end = now if timeline is None else timeline.ended_at
        attributes: dict[str, Attribute] = {
            **self.about,
            "gen_ai.usage.output_tokens": self._num_tokens,
            "gen_ai.response.finish_reasons": tuple(self._outcomes),
            "gen_ai.request.choice.count": self.num_completions,
        }
        if self.num_inherited:
            attributes["radixgate.continued_tokens"] = self.num_inherited
        if (admission := self._admission) is not None:
            hit = admission.hit
            attributes |= {
                "gen_ai.usage.input_tokens": admission.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": hit.total,
                "radixgate.cached_tokens.device": hit.device,
                "radixgate.cached_tokens.host": hit.host,
                "radixgate.cached_tokens.storage": hit.storage,
                "radixgate.computed_prompt_tokens": admission.computed_tokens,
            }
        if error is not None:
            attributes["error.type"] = error
        context = SpanContext(self.parent.trace_id, self.span_id)
        start_ns, end_ns = self.epoch.ns(self.arrived_at), self.epoch.ns(max(end, self.arrived_at))
        # What a client has cancelled, or asked for in vain, is no fault of the worker.
        fault = error if error in _FAULTS else None
        return Span(
            "sequence", context, self.parent.span_id, start_ns, end_ns, Kind.SERVER, shortened(attributes), (), fault
        )

    def _completion(self, index: int, timeline: Timeline, outcome: str, error: str | None) -> list[Span]:
        own = new_span_id()
        attributes: dict[str, Attribute] = {
            "gen_ai.usage.output_tokens": timeline.num_tokens,
            "gen_ai.response.finish_reasons": (outcome,),
            "radixgate.pauses": timeline.num_pauses,
        }
        if error is not None:
            attributes["error.type"] = error
        whole = self._span(f"completion {index}", timeline.began_at, timeline.ended_at, self.span_id, own, attributes)
        return [whole, *self._phases(timeline, own)]

    def _phases(self, timeline: Timeline, parent_id: str | None = None) -> list[Span]:
        spans: list[Span] = []
        for place, interval in enumerate(timeline.intervals):
            phase_id = new_span_id()
            attributes = _of_phase(interval, timeline, is_last=place == len(timeline.intervals) - 1)
            spans.append(
                self._span(
                    interval.phase.value,
                    interval.start,
                    interval.end,
                    parent_id or self.span_id,
                    phase_id,
                    attributes,
                )
            )
            if place == 0 and timeline.prefetched_at is not None:
                until = min(timeline.prefetched_at, interval.end)
                spans.append(self._span("prefetch", interval.start, until, phase_id, new_span_id(), {}))
        return spans

    def _span(
        self,
        name: str,
        start: float,
        end: float,
        parent_id: str,
        span_id: str,
        attributes: dict[str, Attribute],
    ) -> Span:
        context = SpanContext(self.parent.trace_id, span_id)
        return Span(name, context, parent_id, self.epoch.ns(start), self.epoch.ns(end), attributes=attributes)


_FAULTS = frozenset({"internal", "overloaded", "shutting_down", "deadline_exceeded"})


def _of_phase(interval: PhaseInterval, timeline: Timeline, *, is_last: bool) -> dict[str, Attribute]:
    if interval.phase is Phase.PAUSE:
        return {"radixgate.pauses": timeline.num_pauses}
    if is_last and timeline.num_omitted:
        return {"radixgate.omitted_phases": timeline.num_omitted}
    return {}
