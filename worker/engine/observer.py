"""What the engine tells whoever measures it. Metrics implement this by shape and import nothing of the worker.

Calls come from the engine's thread, never from two threads at once, and must return at once: an implementation adds to
counters and does nothing else. Durations are seconds. A sequence is told of in this order: `admitted` at most once,
`first_token` at most once, `next_token` for each later token, `finished` exactly once (also for those refused, which
are never admitted). Of several completions of a request each is a sequence; `admitted` is told of the first, for all.
`paused` comes any number of times, also before `admitted` where a load back was under way. One that was begun elsewhere
is told of by `continued` in place of `admitted`, and never by `first_token`: that was counted where it began.
"""

from typing import Protocol

from hicache.stats import CopyDurations, TierStats
from worker.engine.ports import Admission, Load


class EngineObserver(Protocol):
    """Receives the engine's events."""

    def admitted(self, tenant: str, adapter: str, admission: Admission, queue_wait_s: float) -> None:
        """A sequence starts to run for the first time; the cached tokens of its prompt are counted here, only here.

        `admission.prompt_tokens` = `admission.hit.device` + `.host` + `.storage` + `admission.computed_tokens`.
        `queue_wait_s` runs from submit to now.
        """
        ...

    def continued(self, tenant: str, adapter: str, admission: Admission) -> None:
        """A sequence that was begun elsewhere starts to run here for the first time. Its prompt was counted there.

        `admission` says how much of all that it came with was found here, and how much has to be computed once more.
        """
        ...

    def first_token(self, tenant: str, adapter: str, ttft_s: float) -> None:
        """A sequence got its first token, `ttft_s` after it was submitted."""
        ...

    def next_token(self, tenant: str, adapter: str, gap_s: float) -> None:
        """A sequence got a later token, `gap_s` after the one before (time spent paused included).

        The first one here of a sequence that was begun elsewhere: after it was submitted here.
        """
        ...

    def paused(self, tenant: str, adapter: str) -> None:
        """A running sequence gave its slots up, because there were not enough for all."""
        ...

    def finished(self, tenant: str, adapter: str, outcome: str, output_tokens: int, e2e_s: float) -> None:
        """A sequence ended, `e2e_s` after it was submitted, and got so many tokens here.

        `outcome` is the value of a FinishReason ("stop", "length") or of a FailureCode ("cancelled", "overloaded", …).
        """
        ...

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None:
        """One forward pass over `num_tokens` tokens of `num_sequences` sequences was made, or failed."""
        ...

    def evicted(self, num_tokens: int) -> None:
        """Cached tokens were evicted from device slots since the last call."""
        ...

    def load_changed(self, load: Load) -> None:
        """The state after a step or a cancellation: for gauges."""
        ...

    def tiers_changed(self, stats: TierStats) -> None:
        """The state of the tiers below the device after a step, where there are some; its totals only grow."""
        ...

    def copies_ended(self, durations: CopyDurations) -> None:
        """Copies between tiers have ended since the last call, and took so long, each."""
        ...

    def cache_changed(self, num_namespaces: int, cut_floor_tokens: int) -> None:
        """The state after a step: namespaces that have something in a tier, and what tenants were promised in vain.

        Of each tenant the latter is what its last request asked for, beyond what it got.
        """
        ...


class NullObserver:
    """An observer for those who measure nothing."""

    def admitted(self, tenant: str, adapter: str, admission: Admission, queue_wait_s: float) -> None: ...

    def continued(self, tenant: str, adapter: str, admission: Admission) -> None: ...

    def first_token(self, tenant: str, adapter: str, ttft_s: float) -> None: ...

    def next_token(self, tenant: str, adapter: str, gap_s: float) -> None: ...

    def paused(self, tenant: str, adapter: str) -> None: ...

    def finished(self, tenant: str, adapter: str, outcome: str, output_tokens: int, e2e_s: float) -> None: ...

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None: ...

    def evicted(self, num_tokens: int) -> None: ...

    def load_changed(self, load: Load) -> None: ...

    def tiers_changed(self, stats: TierStats) -> None: ...

    def copies_ended(self, durations: CopyDurations) -> None: ...

    def cache_changed(self, num_namespaces: int, cut_floor_tokens: int) -> None: ...
