"""How a check speaks for a tenant: asks prompts, and hears how much of each was found in the cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, of which one token is generated."""

    token_ids: tuple[int, ...]
    scope: str = ""
    adapter: str = ""
    model: str = ""  # empty: the one that the probe is for


@dataclass(frozen=True, slots=True)
class Reply:
    prompt_tokens: int
    cached: int  # of the prompt's tokens, in whatever tier, public ones among them
    public: int  # of the prompt's tokens, those of a public prefix
    cached_public: int
    first_token_s: float


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt to say who one is."""

    place: str  # what the API calls it: metadata, header, body
    name: str
    value: str


class Refused(Exception):
    """The gateway's refusal, in the API's own words."""

    def __init__(self, code: str, message: str, reason: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        self.details = dict(details or {})

    def without(self, *names: str) -> tuple[object, ...]:
        """Return all that it says but for the names that were asked for, so that two refusals can be compared."""

        def neutral(text: str) -> str:
            for name in names:
                text = text.replace(name, "NAME")
            return text

        details = sorted((neutral(key), neutral(value)) for key, value in self.details.items())
        return (self.code, neutral(self.message), self.reason, tuple(details))


class Unreachable(Exception):
    """There is nobody to ask, or what answers makes no sense."""


class Probe(Protocol):
    """One tenant's access to one API of a gateway. Methods raise Refused or Unreachable."""

    @property
    def over(self) -> str:
        """The API's name."""
        ...

    @property
    def claims(self) -> Sequence[Claim]:
        """Every way to claim an identity over this API, which all must be refused."""
        ...

    @property
    def refusals_of_claims(self) -> frozenset[str]:
        """The codes of refusals that mean: not because you are somebody else, but because you must not say it."""
        ...

    @property
    def not_found(self) -> str:
        """The code of a refusal of what does not exist."""
        ...

    def ask(self, question: Question, claim: Claim | None = None) -> Reply: ...

    def adapters(self) -> frozenset[str]:
        """Return what the tenant may name with the probe's model."""
        ...


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tenants, over one API."""

    mine: Probe
    others: Probe

    @property
    def over(self) -> str:
        return self.mine.over

    def swapped(self) -> "Pair":
        return Pair(self.others, self.mine)
