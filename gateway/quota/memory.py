"""What a gateway remembers of its decisions: refusals that still hold, and how long requests take."""

from gateway.quota.bounds import Bounds

Tenant = tuple[str, float]  # its id, and when it was made

_MAX_TENANTS = 10_000
_FIRST_GUESS_S = 1.0
_NEW_WEIGHT = 0.2  # of the last request among those before it
_LEAST_RETRY_S, _MOST_RETRY_S = 0.05, 60.0


class Refusals:
    """Of limits that nothing but time can open. A refusal holds for the tenant that it was made for, not for another
    under its id, and for the value of the limit that it was made by.
    """

    def __init__(self) -> None:
        self._until: dict[Tenant, tuple[int, float]] = {}

    def remember(self, tenant: Tenant, limit: int, now: float, retry_after_s: float) -> None:
        self._until[tenant] = (limit, now + retry_after_s)

    def opens_in(self, tenant: Tenant, limit: int, now: float) -> float:
        """Return for how long every call is refused; 0 if it is not known to be."""
        value, until = self._until.get(tenant, (limit, now))
        return max(0.0, until - now) if value == limit else 0.0

    def forget(self, now: float) -> None:
        for tenant in [tenant for tenant, (_, until) in self._until.items() if until <= now]:
            del self._until[tenant]


class Paces:
    """How long the requests of each tenant take, as a moving mean."""

    def __init__(self) -> None:
        self._mean_s: dict[str, float] = {}

    def ended(self, tenant: str, seconds: float) -> None:
        before = self._mean_s.pop(tenant, seconds)
        self._mean_s[tenant] = before + (seconds - before) * _NEW_WEIGHT  # at the end: the latest
        if len(self._mean_s) > _MAX_TENANTS:
            del self._mean_s[next(iter(self._mean_s))]

    def until_place(self, tenant: str, bounds: Bounds) -> float:
        """Estimate when one more may come, if all places and the whole line are taken."""
        places = bounds.max_concurrent_requests or 1
        turns = (bounds.max_queued_requests + 1) / places
        return min(_MOST_RETRY_S, max(_LEAST_RETRY_S, self._mean_s.get(tenant, _FIRST_GUESS_S) * turns))
