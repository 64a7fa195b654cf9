"""What Redis has admitted lately, so that it can be told again if it comes back without the last moments."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Charge:
    """What an admission took of a tenant's windows, and when by the store's clock."""

    tenant: str
    second: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the records went at some moment."""

    newest: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class _Record:
    charge: Charge
    ordinal: int
    at: float


class RecentAdmissions:
    """Redis numbers the admissions of each gateway. A number that comes again, or that Redis has not got to, tells of
    one that Redis has lost. Keeps them for `kept_s`: longer than an append-only file may lag behind.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._records: dict[int, _Record] = {}
        self._newest = 0
        self._ordinal = 0

    def mark(self) -> Mark:
        return Mark(self._newest, self._ordinal)

    def record(self, number: int, charge: Charge, now: float) -> Charge | None:
        """Return the charge that had this number before, which Redis has lost; else None."""
        lost = self._records.pop(number, None)
        self._ordinal += 1
        self._records[number] = _Record(charge, self._ordinal, now)
        self._newest = max(self._newest, number)
        return lost.charge if lost is not None else None

    def lost(self, counted: int, mark: Mark) -> Sequence[Charge]:
        """Return, once, what was recorded before `mark` was made and is not among the `counted` after it."""
        if mark.newest <= counted:
            return ()
        numbers = [
            number for number, each in self._records.items() if number > counted and each.ordinal <= mark.ordinal
        ]
        charges = [self._records.pop(number).charge for number in numbers]
        self._newest = max(self._records, default=counted)
        return charges

    def forget(self, now: float) -> None:
        """Drop what is old. Records are in order of their time."""
        while self._records:
            number, oldest = next(iter(self._records.items()))
            if oldest.at >= now - self._kept_s:
                return
            del self._records[number]
