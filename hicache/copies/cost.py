"""Load KV back from the host, or compute it again? Decides from measured speeds. Knows no tensors and no clock."""

from dataclasses import dataclass
from typing import Final

# What an estimate made of measurements keeps of its weight with each new one: about the last five count.
_KEPT: Final = 0.8
# So many times slower or faster than expected is a surprise. A copy is slow for many reasons: one stall is not a trend,
# and counts as no slower than this. It is fast for one reason only: then what was believed so far was wrong.
_SURPRISE: Final = 4.0
_KEPT_AFTER_FAST_SURPRISE: Final = 0.1
_SHORTEST_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class LoadCostConfig:
    """When a hit on the host is not loaded back whatever the estimate, and how long the estimate is believed.

    A hit of fewer than `load_back_threshold` tokens is computed again. An estimate that speaks against loading would
    never be measured again, so after `trusted_s` one load is tried; measurements lose half their weight in that time.
    """

    load_back_threshold: int = 16
    trusted_s: float = 10.0

    def __post_init__(self) -> None:
        if self.load_back_threshold < 1:
            raise ValueError(f"load_back_threshold must be at least 1, got {self.load_back_threshold}")
        if self.trusted_s <= 0:
            raise ValueError(f"trusted_s must be above 0, got {self.trusted_s}")


class LoadCostModel:
    """Compares latency + n / load_tokens_per_s with n / prefill_tokens_per_s. What nobody has measured is no obstacle.

    Owned by one thread. `now` is in seconds of a monotonic clock.
    """

    def __init__(self, config: LoadCostConfig | None = None) -> None:
        self._config = config or LoadCostConfig()
        self._load = _Line(self._config.trusted_s)
        self._prefill = _Line(self._config.trusted_s)
        self._tried_at = float("-inf")  # when a load was last measured, or let through against the estimate

    @property
    def load_back_threshold(self) -> int:
        return self._config.load_back_threshold

    @property
    def load_tokens_per_s(self) -> float | None:
        """Without the latency; None before the first measurement."""
        return 1 / self._load.slope_s if self._load.weight else None

    @property
    def load_latency_s(self) -> float:
        """What a load of any length takes besides; 0.0 as long as nobody knows."""
        return self._load.latency_s

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """None before the first measurement."""
        return self._prefill.tokens / self._prefill.seconds if self._prefill.weight else None

    def observe_load(self, num_tokens: int, seconds: float, *, now: float) -> None:
        """Learn how long a load took. A load of no tokens says nothing."""
        if num_tokens > 0:
            self._load.add(num_tokens, seconds, now)
            self._tried_at = now

    def observe_prefill(self, num_tokens: int, seconds: float, *, now: float) -> None:
        """Learn how long it took to compute KV of so many tokens."""
        if num_tokens > 0:
            self._prefill.add(num_tokens, seconds, now)

    def worth_loading(self, num_tokens: int, *, now: float) -> bool:
        """Return whether to load so many tokens. Against the estimate it says yes once every `trusted_s`, to learn."""
        if num_tokens < self._config.load_back_threshold:
            return False
        prefill = self.prefill_tokens_per_s
        if prefill is None or not self._load.weight or self._load.seconds_for(num_tokens) <= num_tokens / prefill:
            return True
        if now - self._tried_at < self._config.trusted_s:
            return False
        self._tried_at = now
        return True


class _Line:
    """Seconds as a line over tokens: least squares, in which old measurements fade with each new one and with time."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._added_at = 0.0
        self.weight = 0.0  # sums over all measurements, faded: of 1, of tokens, of seconds, of their products
        self.tokens = 0.0
        self.seconds = 0.0
        self._tokens_squared = 0.0
        self._tokens_by_seconds = 0.0
        self.latency_s = 0.0
        self.slope_s = 0.0  # seconds for each token

    def add(self, num_tokens: int, seconds: float, now: float) -> None:
        seconds = max(seconds, _SHORTEST_S)
        kept = _KEPT
        if self.weight:
            expected = self.seconds_for(num_tokens)
            seconds = min(seconds, expected * _SURPRISE)
            if seconds < expected / _SURPRISE:
                kept = _KEPT_AFTER_FAST_SURPRISE
        self._fade(kept * 0.5 ** (max(0.0, now - self._added_at) / self._half_life_s))
        self._added_at = now
        self.weight += 1
        self.tokens += num_tokens
        self.seconds += seconds
        self._tokens_squared += num_tokens * num_tokens
        self._tokens_by_seconds += num_tokens * seconds
        self._fit()

    def seconds_for(self, num_tokens: int) -> float:
        return self.latency_s + num_tokens * self.slope_s

    def _fade(self, kept: float) -> None:
        self.weight *= kept
        self.tokens *= kept
        self.seconds *= kept
        self._tokens_squared *= kept
        self._tokens_by_seconds *= kept

    def _fit(self) -> None:
        """Take the best line; one through zero where lengths hardly differ, or the best one makes no sense."""
        self.latency_s, self.slope_s = 0.0, self.seconds / self.tokens
        spread = self.weight * self._tokens_squared - self.tokens**2
        if spread > 0.01 * self.tokens**2:
            slope_s = (self.weight * self._tokens_by_seconds - self.tokens * self.seconds) / spread
            latency_s = (self.seconds - slope_s * self.tokens) / self.weight
            if slope_s > 0 and latency_s > 0:
                self.latency_s, self.slope_s = latency_s, slope_s
