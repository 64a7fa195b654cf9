"""Which workers a gateway keeps links to, where workers register: decides, and does nothing.

A link that is up is better proof of life than the registry: it stays, whatever becomes of its worker's entry.

    entry                        link up                         link down
    there                        kept                            kept, and tried again
    gone                         kept                            dropped, when both have been so for a while
    its worker is elsewhere      gets nothing new, and is        dropped
                                 dropped when it is idle
    not known (Redis is away)    kept                            kept
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link, as far as this decision goes."""

    address: str
    is_up: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be done about the links."""

    join: tuple[str, ...] = ()  # addresses without a link
    retire: frozenset[str] = frozenset()  # all links that get nothing new, those retired before included
    drop: tuple[str, ...] = ()


class Roster:
    """Remembers whose address is which, and for how long links have been without a worker."""

    def __init__(self, forget_s: float) -> None:
        """A link that is down, and whose worker is not registered, is dropped after `forget_s`."""
        self._forget_s = forget_s
        self._worker_at: dict[str, str] = {}  # by address, of links
        self._missing_since: dict[str, float] = {}  # by address, of links
        self._retired: frozenset[str] = frozenset()

    def unknown(self) -> Changes:
        """Return what is to be done while nobody knows who is registered: nothing, and nobody's time runs."""
        self._missing_since.clear()
        return Changes(retire=self._retired)

    def changes(self, registered: Mapping[str, str], links: Sequence[LinkState], now: float) -> Changes:
        """Return what is to be done. `registered` are addresses by worker; `now` is of a monotonic clock."""
        wanted = {address: worker_id for worker_id, address in sorted(registered.items(), reverse=True)}
        linked = {link.address: link for link in links}
        self._worker_at = {
            address: worker_id
            for address, worker_id in {**self._worker_at, **wanted}.items()
            if address in linked or address in wanted
        }
        unwanted = [link for link in links if link.address not in wanted]
        retired = frozenset(link.address for link in unwanted if self._worker_at.get(link.address) in registered)
        missing = [link.address for link in unwanted if not link.is_up and link.address not in retired]
        self._missing_since = {address: self._missing_since.get(address, now) for address in missing}
        drop = [link.address for link in unwanted if link.address in retired and not (link.is_up and link.in_flight)]
        drop += [address for address, since in self._missing_since.items() if now - since >= self._forget_s]
        self._retired = retired.difference(drop)
        return Changes(tuple(sorted(wanted.keys() - linked.keys())), self._retired, tuple(sorted(drop)))
