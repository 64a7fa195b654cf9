"""What the sequences here have yet to compute of what they came with, by the link that they came over.

Of one that waits that is an estimate: what it would find in the cache, or waits for somebody else to compute, as far as
anybody has looked. Costs O(1) for each change, and O(running sequences) when it is asked for.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from worker.engine.ports import LinkLoad
from worker.engine.sequence import Sequence

_NOTHING = LinkLoad()


class Backlog:
    """Invariant: each waiting sequence is counted once, for its link, with its latest estimate."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[Sequence, int]] = OrderedDict()  # by order; with the estimate
        self._links: dict[int, LinkLoad] = {}  # of those that wait

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def waits(self, sequence: Sequence, found_tokens: int) -> None:
        """A sequence begins to wait, or while it does: so many tokens it will not have to compute."""
        tokens = max(1, sequence.num_known - found_tokens)
        _, known = self._waiting.get(sequence.order, (sequence, None))
        if known == tokens:
            return
        self._waiting[sequence.order] = sequence, tokens
        self._count(sequence, int(known is None), tokens - (known or 0))

    def left(self, sequence: Sequence) -> None:
        """A sequence waits no longer. Harmless if it did not."""
        _, tokens = self._waiting.pop(sequence.order, (sequence, None))
        if tokens is not None:
            self._count(sequence, -1, -tokens)

    def next_to_look_at(self) -> Sequence | None:
        """Return one of those that wait, in turn: what it would find may be another thing by now."""
        if not self._waiting:
            return None
        order = next(iter(self._waiting))
        self._waiting.move_to_end(order)
        return self._waiting[order][0]

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
            _, tokens = self._waiting.get(sequence.order, (sequence, 0))
            tokens += known.pending_tokens
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


def _missing(sequence: Sequence) -> int:
    """Return how many tokens a running sequence has yet to compute before it decodes, which it does one by one.

    What is being loaded is as good as computed.
    """
    missing = sequence.num_missing
    lease = sequence.lease
    if sequence.awaits_load and lease is not None:
        missing = sequence.num_known - lease.num_slots
    return missing if missing > 1 else 0
