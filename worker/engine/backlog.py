"""What the sequences here have yet to compute of what they came with, by the link that they came over.

Of one that waits that is an estimate: what it would find in the cache, or waits for somebody else to compute, as far as
anybody has looked. Costs O(1) for each change, and O(running sequences) when it is asked for.
"""

from collections.abc import Iterable, Mapping

from worker.engine.ports import LinkLoad
from worker.engine.sequence import Sequence

_NOTHING = LinkLoad()


class Backlog:
    """Invariant: each waiting sequence is counted once, for its link, with its latest estimate."""

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}  # estimated tokens, by order
        self._links: dict[int, LinkLoad] = {}  # of those that wait

    def waits(self, sequence: Sequence, found_tokens: int) -> None:
        """A sequence begins to wait: so many tokens it will not have to compute."""
        tokens = _lacking(sequence, found_tokens)
        self._waiting[sequence.order] = tokens
        self._count(sequence, 1, tokens)

    def found(self, sequence: Sequence, found_tokens: int) -> None:
        """So many tokens a sequence will not have to compute, as it looks now. Nothing if it does not wait."""
        known = self._waiting.get(sequence.order)
        if known is not None:
            tokens = self._waiting[sequence.order] = _lacking(sequence, found_tokens)
            self._count(sequence, 0, tokens - known)

    def left(self, sequence: Sequence) -> None:
        """A sequence waits no longer. Harmless if it did not."""
        tokens = self._waiting.pop(sequence.order, None)
        if tokens is not None:
            self._count(sequence, -1, -tokens)

    def by_link(self, running: Iterable[Sequence]) -> Mapping[int, LinkLoad]:
        """Return what each link has here, those that run included."""
        found = dict(self._links)
        counts: dict[int, int] = {}
        tokens: dict[int, int] = {}
        for sequence in running:
            link = sequence.request.sequence_id[0]
            counts[link] = counts.get(link, 0) + 1
            tokens[link] = tokens.get(link, 0) + _missing(sequence)
        for link, count in counts.items():
            known = found.get(link, _NOTHING)
            found[link] = LinkLoad(known.sequences + count, known.pending_tokens + tokens[link])
        return found

    def check(self, waiting: Iterable[Sequence]) -> None:
        """Verify the invariant; raises AssertionError."""
        links: dict[int, LinkLoad] = {}
        orders = set()
        for sequence in waiting:
            orders.add(sequence.order)
            known = links.get(sequence.request.sequence_id[0], _NOTHING)
            tokens = known.pending_tokens + self._waiting.get(sequence.order, 0)
            links[sequence.request.sequence_id[0]] = LinkLoad(known.sequences + 1, tokens)
        assert orders == self._waiting.keys(), "other sequences are counted than those that wait"
        assert links == self._links, "what waits is miscounted"

    def _count(self, sequence: Sequence, sequences: int, tokens: int) -> None:
        link = sequence.request.sequence_id[0]
        known = self._links.get(link, _NOTHING)
        if known.sequences + sequences:
            self._links[link] = LinkLoad(known.sequences + sequences, known.pending_tokens + tokens)
        else:
            del self._links[link]


def _lacking(sequence: Sequence, found_tokens: int) -> int:
    """Return how many tokens one that waits has to compute: at least one."""
    return max(1, sequence.num_known - found_tokens)


def _missing(sequence: Sequence) -> int:
    """Return how many tokens a running sequence has yet to compute before it decodes, which it does one by one.

    What is being loaded is as good as computed.
    """
    missing = sequence.num_missing
    lease = sequence.lease
    if sequence.awaits_load and lease is not None:
        missing = sequence.num_known - lease.num_slots
    return missing if missing > 1 else 0
