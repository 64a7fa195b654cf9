"""A registered adapter: which revisions of it share the traffic, and what operators may make of that.

Values and decisions; knows neither workers nor where it is kept. Times are seconds since the epoch.
"""

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from gateway.errors import FailedPreconditionError, InvalidRequestError, Violation

MIN_REVISION_DIGITS = 8
DEFAULT_GRACE_S = 30.0

# Clocks of workers and gateways agree to within this. What a worker was given later than that was not given by us.
_CLOCKS_AGREE_S = 60.0
_MAX_RETIRED = 32
_FORGOTTEN_AFTER_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """What an operator names an adapter by. No tenant may use two of one model and name."""

    model: str
    name: str
    tenants: frozenset[str]  # that may use it; empty: all

    def is_for(self, tenant_id: str) -> bool:
        return not self.tenants or tenant_id in self.tenants

    def overlaps(self, other: "AdapterKey") -> bool:
        """Whether some tenant would mean both by one name."""
        if (self.model, self.name) != (other.model, other.name) or self.tenants == other.tenants:
            return False
        return not self.tenants or not other.tenants or bool(self.tenants & other.tenants)


@dataclass(frozen=True, slots=True)
class Weights:
    """One revision: the digest of its weights and configuration, and the folder that workers read it from."""

    revision: str
    path: str
    registered_at: float


@dataclass(frozen=True, slots=True)
class Share:
    weights: Weights
    percent: int  # of the adapter's traffic


@dataclass(frozen=True, slots=True)
class Retired:
    """A revision that no request is given any more, and that workers are to let go."""

    revision: str
    retired_at: float
    grace_s: float = DEFAULT_GRACE_S

    def covers(self, revision: str, loaded_at: float) -> bool:
        """Whether this is what a worker has; not if it has been given the same weights again by somebody else."""
        return self.revision == revision and loaded_at <= self.retired_at + _CLOCKS_AGREE_S


@dataclass(frozen=True, slots=True)
class Registration:
    """What is wanted of one adapter.

    Invariant: there are at most two shares, the older one first, and they make 100 percent; without any the adapter
    is registered no longer. A revision is never both among the shares and retired.
    """

    key: AdapterKey
    shares: tuple[Share, ...] = ()
    previous: Weights | None = None  # what had the traffic before
    retired: tuple[Retired, ...] = field(default=())

    def share_of(self, revision: str) -> Share | None:
        return next((share for share in self.shares if share.weights.revision == revision), None)

    def check(self) -> None:
        live = {share.weights.revision for share in self.shares}
        assert len(self.shares) == len(live) <= 2
        assert not self.shares or sum(share.percent for share in self.shares) == 100
        assert not live & {each.revision for each in self.retired}

    # ------------------------------------------------------------------------------------------ what is asked for

    def may_add(self, path: str) -> None:
        """Raise FailedPreconditionError where weights from a folder that was not read yet would be one too many."""
        if len(self.shares) == 2 and path not in {share.weights.path for share in self.shares}:
            raise _too_many(self)

    def with_weights(self, weights: Weights, percent: int, now: float) -> "Registration":
        """Give weights a share of the traffic, beside those that have it. Raises FailedPreconditionError."""
        if not self.shares:
            return self._sharing((Share(weights, 100),), None, now)
        known = self.share_of(weights.revision)
        if known is None and len(self.shares) == 2:
            raise _too_many(self)
        if known is not None:  # it has been there since then, wherever it is read from now on
            weights = replace(known.weights, path=weights.path)
        if known is not None and len(self.shares) == 1:
            return self._sharing((Share(weights, 100),), self.previous, now)
        others = [share for share in self.shares if share is not known]
        return self._divided(others[0].weights, weights, percent, now)

    def split(self, revision: str, percent: int, now: float) -> "Registration":
        """Give the share with this revision, or its beginning, `percent` of the traffic and the other one the rest.

        Raises InvalidRequestError, FailedPreconditionError.
        """
        if len(revision) < MIN_REVISION_DIGITS:
            raise _invalid("revision", f"has {len(revision)} digits; at least {MIN_REVISION_DIGITS} are needed")
        matching = [share for share in self.shares if share.weights.revision.startswith(revision)]
        if len(matching) != 1:
            names = " and ".join(share.weights.revision for share in self.shares)
            what = "is the beginning of both revisions" if matching else "is no revision that has traffic"
            raise _invalid("revision", f"{what}: there is {names}")
        if len(self.shares) == 1:
            if percent == 100:
                return self
            raise FailedPreconditionError(
                f"adapter {self.key.name!r} has one revision only: register the other one to divide the traffic",
                reason="ONE_REVISION",
            )
        chosen = matching[0]
        other = self.shares[0] if chosen is self.shares[1] else self.shares[1]
        return self._divided(other.weights, chosen.weights, percent, now)

    def back_to(self) -> Weights:
        """Return what `rolled_back` gives the traffic to. Raises FailedPreconditionError."""
        if len(self.shares) == 2:
            return self.shares[0].weights
        if self.previous is None:
            raise FailedPreconditionError(
                f"adapter {self.key.name!r} has no revision to go back to", reason="NO_PREVIOUS_REVISION"
            )
        return self.previous

    def rolled_back(self, now: float) -> "Registration":
        """Give all traffic back to the older of two shares, or to the weights that had it before."""
        if len(self.shares) == 2:  # the canary goes, and what came before it is previous as it was
            return self._sharing((Share(self.shares[0].weights, 100),), self.previous, now)
        return self._sharing((Share(self.back_to(), 100),), self.shares[0].weights, now)

    def unregistered(self, now: float, grace_s: float) -> "Registration":
        return self._sharing((), None, now, grace_s)

    # --------------------------------------------------------------------------------------------------- made of it

    def _divided(self, other: Weights, chosen: Weights, percent: int, now: float) -> "Registration":
        if percent == 100:
            return self._sharing((Share(chosen, 100),), other, now)
        if percent == 0:
            return self._sharing((Share(other, 100),), chosen, now)
        shares = (Share(other, 100 - percent), Share(chosen, percent))
        older_first = sorted(shares, key=lambda share: share.weights.registered_at)
        return self._sharing(tuple(older_first), self.previous, now)

    def _sharing(
        self, shares: tuple[Share, ...], previous: Weights | None, now: float, grace_s: float = DEFAULT_GRACE_S
    ) -> "Registration":
        """Return this with other shares. What loses all of its traffic is retired."""
        live = {share.weights.revision for share in shares}
        gone = [
            Retired(share.weights.revision, now, grace_s) for share in self.shares if share.weights.revision not in live
        ]
        again = live | {each.revision for each in gone}
        kept = [each for each in self.retired if each.revision not in again]
        return replace(self, shares=shares, previous=previous, retired=tuple([*kept, *gone][-_MAX_RETIRED:]))

    def is_forgotten(self, now: float) -> bool:
        """Whether nobody needs to know any more that it was registered once."""
        return not self.shares and all(now - each.retired_at > _FORGOTTEN_AFTER_S for each in self.retired)


def chosen_order(registration: Registration, affinity: str) -> list[Weights]:
    """Return the revisions for a request, the one that it should get first.

    The same affinity always gets the same one while the shares stay; when they move, only as many affinities change
    over as the shares have moved by. Which ones are the first to get new weights differs from revision to revision.
    """
    weights = [share.weights for share in registration.shares]
    if len(weights) < 2:
        return weights
    older, newer = registration.shares
    drawn = _fraction(registration.key.name, newer.weights.revision, affinity)
    return [newer.weights, older.weights] if drawn * 100 < newer.percent else [older.weights, newer.weights]


def _fraction(*parts: str) -> float:
    digest = blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") / 2**64


def _too_many(registration: Registration) -> FailedPreconditionError:
    names = " and ".join(share.weights.revision for share in registration.shares)
    return FailedPreconditionError(
        f"adapter {registration.key.name!r} has two revisions already ({names}): give one of them all traffic with "
        "SplitAdapterTraffic or RollBackAdapter first",
        reason="TWO_REVISIONS",
    )


def _invalid(field_name: str, description: str) -> InvalidRequestError:
    return InvalidRequestError([Violation(field_name, description)])
