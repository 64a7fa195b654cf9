"""What a request costs of its tenant's tokens per minute."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from gateway.config import QuotaConfig
from gateway.quota.accounts import Account


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """Costs of tokens beside those that are computed, which cost 1."""

    cached: float = 1.0
    counted: float = 0.0

    @classmethod
    def of(cls, config: QuotaConfig) -> "TokenCosts":
        return cls(config.cached_token_cost, config.counted_token_cost)

    def of_use(self, account: Account) -> int:
        """Return what was used, rounded up. What no worker has admitted costs nothing."""
        total = _times(account.counted_tokens, self.counted)
        if account.admitted:
            computed = account.prompt_tokens - account.cached_tokens
            total += computed + account.completion_tokens + _times(account.cached_tokens, self.cached)
        return _up(total)

    def of_counting(self, num_tokens: int) -> int:
        """Return what it costs to have so many tokens counted."""
        return _up(_times(num_tokens, self.counted))


def _times(num_tokens: int, cost: float) -> Decimal:
    # As it is written in the configuration: 0.1 times 30 is 3, and rounds up to no more.
    return num_tokens * Decimal(str(cost))


def _up(total: Decimal) -> int:
    return int(total.to_integral_value(ROUND_CEILING))
