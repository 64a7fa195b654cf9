"""What workers have been given to compute lately, in seconds of their own time."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.routing.router import Candidate


@dataclass(slots=True)
class _Account:
    connected_at: float
    weighted_s: float  # with the weight of the time when it was given
    warm_at: float


class Accounts:
    """Of each worker, what one gateway has given it; half of it is forgotten in each `half_life_s`.

    Who joins begins with the mean: with nothing it would get every request until it has caught up. While it is new,
    half of what it is given does not count, so it fills its cache at up to twice the pace of the others.
    """

    def __init__(self, half_life_s: float, warm_up_s: float) -> None:
        self._half_life_s = half_life_s
        self._warm_up_s = warm_up_s
        self._epoch: float | None = None  # when the weight is 1
        self._accounts: dict[str, _Account] = {}

    def seconds(self, candidates: Sequence[Candidate], now: float) -> list[float]:
        """Return what each has been given, as far as it is not forgotten."""
        weight = self._weight(now)
        accounts = self._accounts
        found = [accounts.get(candidate.worker) for candidate in candidates]
        if any(a is None or a.connected_at != c.connected_at for a, c in zip(found, candidates, strict=True)):
            self._join(candidates, now)
            found = [accounts[candidate.worker] for candidate in candidates]
        return [account.weighted_s / weight for account in found if account is not None]

    def is_warming(self, worker: str, now: float) -> bool:
        """Whether a worker has joined others not long ago."""
        account = self._accounts.get(worker)
        return account is not None and now < account.warm_at

    def charge(self, worker: str, seconds: float, now: float) -> None:
        """A worker that takes part has been given so much to compute."""
        account = self._accounts[worker]
        share = 0.5 if now < account.warm_at else 1.0
        account.weighted_s += share * seconds * self._weight(now)

    def _join(self, candidates: Sequence[Candidate], now: float) -> None:
        stay, come = list[_Account](), list[Candidate]()
        for candidate in candidates:
            account = self._accounts.get(candidate.worker)
            if account is not None and account.connected_at == candidate.connected_at:
                stay.append(account)
            else:
                come.append(candidate)
        mean = sum(account.weighted_s for account in stay) / len(stay) if stay else 0.0
        # Where all begin together nobody is new.
        warm_at = now + self._warm_up_s if any(account.weighted_s for account in stay) else now
        for candidate in come:
            self._accounts[candidate.worker] = _Account(candidate.connected_at, mean, warm_at)
        if len(self._accounts) > 64 + 4 * len(candidates):
            least = sorted(self._accounts, key=lambda worker: self._accounts[worker].weighted_s)
            for worker in set(least[: len(least) // 2]) - {candidate.worker for candidate in candidates}:
                del self._accounts[worker]

    def _weight(self, now: float) -> float:
        """Return what a second given now counts; it doubles in each half-life, which saves forgetting one by one."""
        if self._epoch is None:
            self._epoch = now
        age = (now - self._epoch) / self._half_life_s
        if age > 64:
            faded = 2.0 ** -min(age, 1000.0)
            for account in self._accounts.values():
                account.weighted_s *= faded
            self._epoch, age = now, 0.0
        return float(2.0**age)
