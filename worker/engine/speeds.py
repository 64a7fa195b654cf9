"""How fast forward passes are of late: values in, values out."""

from typing import Final

from hicache.stats import Speed

_PREFILL_TOKENS: Final = 64
"""From so many tokens of prompts on a pass says how fast prompts are computed."""


class PassSpeeds:
    """Learns from each pass."""

    def __init__(self) -> None:
        self._prefill = Speed()
        self._passes = Speed()  # a token each

    def passed(self, num_tokens: int, num_prompt_tokens: int, duration_s: float) -> None:
        """A pass over `num_tokens` tokens was made, some of them of prompts, that waited for no copy."""
        self._passes.add(1, duration_s)
        if num_prompt_tokens >= _PREFILL_TOKENS:
            self._prefill.add(num_tokens, duration_s)

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 before the first pass that says it."""
        return self._prefill.tokens_per_s

    @property
    def step_s(self) -> float:
        """What a pass takes; 0 before the first one."""
        passes_per_s = self._passes.tokens_per_s
        return 1 / passes_per_s if passes_per_s else 0.0
