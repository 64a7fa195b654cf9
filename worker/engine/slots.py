"""How many slots sequences need, and getting them: the arithmetic between scheduler and cache."""

from collections.abc import Sequence as SequenceOf

from hicache.cache import PrefixCache
from worker.engine.sequence import Sequence
from worker.engine.shares import Shares


class SlotBudget:
    """Answers whether a sequence may start, and reserves slots for those that run.

    A running sequence is *pledged* slots for all that is known of it and for some output to come. Sequences start only
    while all pledges can be kept at once; so prompts are never over-committed, and outputs only beyond the headroom.
    What a load back fills is part of the pledge: its slots are held from the beginning on.

    Which slots there are depends on the tenant: what others are promised and have is not there for it. The tenant of
    the one that starts is asked. So a tenant gets what it is promised, although others counted on it, who pause then.
    """

    def __init__(self, cache: PrefixCache, headroom_tokens: int) -> None:
        self._cache = cache
        self._headroom_tokens = headroom_tokens

    def fits(self, sequence: Sequence, hit_tokens: int, running: SequenceOf[Sequence]) -> bool:
        """Whether `sequence` may start with `hit_tokens` in the cache.

        One that would run alone may, unless somebody else than the engine holds slots: it was refused if it can't fit.
        """
        pledged = sum(self._pledge(other, self._held(other)) for other in running)
        return pledged + self._pledge(sequence, hit_tokens) <= self._cache.num_available_slots(sequence.request.tenant)

    def lacking(self, sequence: Sequence, hit_tokens: int) -> int:
        """Slots that `sequence` needs to start."""
        return self._pledge(sequence, hit_tokens)

    def secure(self, sequence: Sequence, num_tokens: int, now: float) -> bool:
        """Make sure that the next `num_tokens` tokens of a running `sequence` have slots. False: there are too few."""
        lease = sequence.lease
        assert lease is not None
        lacking = sequence.num_computed + num_tokens - lease.num_tokens
        return lacking <= 0 or lease.reserve(lacking, now=now)

    def will_come(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether slots that `secure` did not find are on their way back, without anybody having to pause."""
        returning = self._cache.num_returning_slots
        lacking = self._whole_pages(sequence.num_computed + num_tokens) - self._held(sequence)
        return 0 < lacking - self._cache.num_available_slots(sequence.request.tenant) <= returning

    def whom_to_pause(self, sequence: Sequence, running: SequenceOf[Sequence], shares: Shares) -> Sequence:
        """Return who has to give its slots up for `sequence`, which is one of `running`: it itself, if nobody else.

        The last one does whose slots can be had: not what another tenant is promised, nor what one that has no more
        than its share would lose to one that has more. Whose tenant is promised slots that it lacks, or has less than
        its share, comes before older ones of others, too. The first of all gets whatever isn't promised.
        """
        place = running.index(sequence)
        takes_more = shares.is_above(sequence.request.tenant)
        for other in reversed(running[place + 1 :]):
            keeps = self._is_within_floor(other, running) or (takes_more and not shares.is_above(other.request.tenant))
            if other.request.tenant == sequence.request.tenant or not keeps:
                return other
        if place == 0:
            for other in reversed(running[1:]):
                if not self._is_within_floor(other, running):
                    return other
        if self._is_within_floor(sequence, running, self._cache.page_size):
            for other in reversed(running[1:place]):
                if not self._is_within_floor(other, running):
                    return other
        richer = None if takes_more else shares.gives_slots_to(sequence)
        return sequence if richer is None or self._is_within_floor(richer, running) else richer

    def _is_within_floor(self, sequence: Sequence, running: SequenceOf[Sequence], more_slots: int = 0) -> bool:
        """Whether the tenant of `sequence` has no more than it is promised, and wouldn't with `more_slots`."""
        tenant = sequence.request.tenant
        leases = [other.lease for other in running if other.request.tenant == tenant]
        return self._cache.is_within_floor(
            tenant, more_slots + sum(lease.num_private_slots for lease in leases if lease is not None)
        )

    def _pledge(self, sequence: Sequence, held_tokens: int) -> int:
        # Who had to pause asks for twice as much each time, so that pauses of one sequence grow rare quickly.
        headroom = self._headroom_tokens << sequence.num_pauses
        needed = min(sequence.num_known + headroom, sequence.capacity)
        return max(0, self._whole_pages(needed) - self._whole_pages(held_tokens))

    def _held(self, sequence: Sequence) -> int:
        if sequence.lease is None:
            return 0
        # While a load is under way its slots are held already, and have no tokens yet.
        return max(sequence.lease.num_tokens, sequence.lease.num_slots)

    def _whole_pages(self, num_tokens: int) -> int:
        page_size = self._cache.page_size
        return -(-num_tokens // page_size) * page_size
