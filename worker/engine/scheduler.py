"""Decides what each step computes, and who holds slots. No model, no clock, no text: values in, values out.

There is no prefill or decode phase: in every step each running sequence catches up with what is known of it, those that
lack one token first, then longer chunks within the step's budget, which tenants share; of a tenant, oldest first. Then
sequences from the waiting line start, as many as places, slots and budget allow.
"""

from bisect import insort
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from operator import attrgetter

from hicache.cache import Hit, PrefixCache
from worker.config import EngineConfig
from worker.engine.adapters import AdapterPlaces
from worker.engine.backlog import Backlog
from worker.engine.contention import MAX_LOOKS, Contention
from worker.engine.draft import Draft
from worker.engine.inflight import InFlightPrefixes
from worker.engine.ports import Admission, LinkLoad
from worker.engine.prompts import PromptShares
from worker.engine.sequence import Sequence
from worker.engine.shares import Shares
from worker.engine.slots import SlotBudget
from worker.engine.step import Committed, Step
from worker.engine.waiting import Front, KnownHits, WaitingLine

_PRECEDENCE = attrgetter("precedence")

_FLOOD_STEPS = 4
"""A tenant with prompts for more steps than this floods the worker."""


class Scheduler:
    """Owns the waiting line, the running sequences and their leases.

    Invariant: a sequence is in the line (and holds no lease), or running (and holds one), or not here at all.
    Progress: the first running sequence by precedence is never paused for another one, and whatever is not leased to
    it can be evicted or taken from the others, but for what other tenants are promised, and for what copies hold that
    have not ended. Without the former it fits, or it was refused. So it ends; then the next one is first.

    A sequence runs from when its load back begins, and computes when that has ended. Tickets tell of a copy layer by
    layer (`Ticket.layers_done`; a copy on CUDA is ahead of the forward pass only if somebody looks at it); this waits
    for all layers, so that executors need not know of copies.
    """

    def __init__(
        self, cache: PrefixCache, line: WaitingLine, hits: KnownHits, adapters: AdapterPlaces, config: EngineConfig
    ) -> None:
        """`hits` are those of `cache`, which `line` may look at, too."""
        self._cache = cache
        self._line = line
        self._hits = hits
        self._adapters = adapters
        self._config = config
        self._slots = SlotBudget(cache, config.headroom_tokens)
        self._in_flight = InFlightPrefixes(cache.page_size, config.min_shared_tokens)
        self._contention = Contention()
        self._backlog = Backlog()
        hits.on_found = self._found
        contested_tokens = config.contested_prompt_tokens or max(1, config.max_step_tokens // 8)
        flood_tokens = _FLOOD_STEPS * config.max_step_tokens
        self._prompts = PromptShares(config.max_chunk_tokens, contested_tokens, flood_tokens)
        self._running: list[Sequence] = []  # ascending by precedence

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def enqueue(self, begun: SequenceOf[Sequence], now: float) -> None:
        """Take in what a request begins with, all or, if this raises, nothing of it.

        While they wait, storage brings what it has of their keys. Only this once: what a sequence had when it paused
        was on the device, and is there or on the host yet, or was taken for others.
        """
        self._prompts.seen(begun[0].request.tenant, now)
        for place, sequence in enumerate(begun):
            try:
                sequence.prefetch = self._cache.prefetch(
                    sequence.key, now=now, max_tokens=sequence.max_cached_tokens, tenant=sequence.request.tenant
                )
                found = self._hits.of(sequence)
                self._line.push(sequence)
            except BaseException:
                self._hits.forget(sequence)
                sequence.stop_prefetch()
                for other in begun[:place]:
                    self.remove(other, now)
                raise
            self._backlog.waits(sequence, found.total)

    def join(self, branch: Sequence) -> None:
        """Take in a sequence whose prompt another one has computed just now; it starts from there in its turn."""
        self._push(branch)

    def remove(self, sequence: Sequence, now: float) -> None:
        """Let go of a sequence that has ended, wherever it is. What it has computed stays in the cache.

        It is not here any more, whatever the cache makes of that.
        """
        self._in_flight.ended(sequence)
        self._hits.forget(sequence)
        self._contention.forget(sequence)
        self._line.settle(sequence)
        if sequence.lease is None:
            self._line.remove(sequence)
            self._backlog.left(sequence)
            sequence.stop_prefetch()
        else:
            self._running.remove(sequence)
            self._release(sequence, now)

    def schedule(self, now: float) -> Step:
        """Decide the next step: reserve its slots, pause whom there are no slots for, start whom there are."""
        draft = Draft(self._config.max_step_tokens)
        self._pause_for_adapters(draft, now)
        front = self._line.front()
        catching_up = self._continue_running(draft, front, now)
        self._start_waiting(draft, front, now)
        self._use_rest(catching_up, draft, now)
        return draft.step()

    def commit(self, step: Step, now: float) -> Committed:
        """The forward pass of `step` was made: its tokens are computed; what they finish of a prefix is shared.

        Not those that were computed behind a load which has not ended well by now: they are computed again.
        """
        draft = Draft(0)
        void = []
        for chunk in step.chunks:
            sequence = chunk.sequence
            if sequence.follows_load and not (
                self._settle_load(sequence, draft) and sequence.num_computed == chunk.start
            ):
                void.append(sequence)
                continue
            was_prefilling = sequence.prefilling
            sequence.num_computed = chunk.end
            # Decoded tokens enter the cache when the sequence stops: nobody can ask for them before.
            if was_prefilling:
                if sequence.lease is not None:
                    sequence.lease.commit(sequence.key.prefix(chunk.end), now=now)
                    self._line.published(sequence, chunk.end)
                if not sequence.prefilling:
                    self._in_flight.ended(sequence)
        return Committed(tuple(draft.admitted), tuple(void))

    def loads(self) -> Mapping[int, LinkLoad]:
        """Return what each link has here, running and waiting. From any thread: true as of some moment just now."""
        return self._backlog.by_link(tuple(self._running))

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        assert self._running == sorted(self._running, key=_PRECEDENCE), "running sequences are out of order"
        for sequence in self._running:
            assert sequence.lease is not None, f"{sequence.request.sequence_id} runs without slots"
            assert sequence.num_computed <= sequence.lease.num_tokens, "computed tokens without slots"
            assert sequence.num_computed < sequence.num_known, "a running sequence has nothing to do"
        self._adapters.check(self._running)
        self._line.check()
        for sequence in self._line.members():
            assert sequence.lease is None, f"{sequence.request.sequence_id} waits and holds slots"
            assert not sequence.ended, f"{sequence.request.sequence_id} waits and has ended"
        self._in_flight.check()
        self._contention.check(len(self._line))
        self._backlog.check(self._line.members())

    def _pause_for_adapters(self, draft: Draft, now: float) -> None:
        overdue = self._adapters.overdue(now)
        if overdue:
            for sequence in [each for each in self._running if each.request.adapter_revision in overdue]:
                self._pause(sequence, draft, now)

    def _continue_running(self, draft: Draft, front: Mapping[str, Front], now: float) -> list[Sequence]:
        """Let those go on that run; return those that lack more than one token.

        What the step has for these is divided among tenants, those included that wait to start.
        """
        decoding: list[Sequence] = []
        catching_up: list[Sequence] = []
        for sequence in self._running:
            (decoding if sequence.num_missing == 1 else catching_up).append(sequence)
        for sequence in decoding:
            if sequence.lease is not None:  # else it was paused for one of those before it
                self._continue(sequence, 1, draft, now)
        allowed = self._prompts.divide(draft.budget, catching_up, front, now)
        draft.budget -= allowed.withheld
        for sequence in catching_up:
            whose = (sequence.request.priority, sequence.request.tenant)
            # The first by precedence goes on whoever waits: only it has others pause, in the end itself.
            most = max(allowed.tokens[whose], int(sequence in self._running[:1]))
            if sequence.lease is not None and most:
                used = self._continue(sequence, most, draft, now)
                allowed.tokens[whose] = max(0, allowed.tokens[whose] - used)
        return catching_up

    def _continue(self, sequence: Sequence, max_tokens: int, draft: Draft, now: float) -> int:
        """Let a running sequence compute at most `max_tokens` tokens; return how many it does."""
        if draft.budget == 0 or not self._is_ready(sequence, draft, now):
            return 0
        num_tokens = min(self._chunk_tokens(sequence, draft), max_tokens)
        if not num_tokens or not self._make_room(sequence, num_tokens, draft, now):
            return 0
        draft.add(sequence, num_tokens)
        return num_tokens

    def _use_rest(self, catching_up: list[Sequence], draft: Draft, now: float) -> None:
        """Give those that lack more than one token what nobody else could use of the step. Nobody pauses for that."""
        for sequence in catching_up:
            if draft.budget == 0:
                return
            if sequence.lease is None or not self._is_ready(sequence, draft, now):
                continue
            has = draft.num_tokens(sequence)
            more = min(draft.budget, draft.scores) if sequence.scores else draft.budget
            wanted = min(sequence.num_missing, self._config.max_chunk_tokens, has + more)
            if wanted > has and self._slots.secure(sequence, wanted, now):
                draft.drop(sequence)
                draft.add(sequence, wanted)

    def _is_ready(self, sequence: Sequence, draft: Draft, now: float) -> bool:
        """Whether a running sequence can compute. One whose load back has ended begins with what that brought."""
        lease = sequence.lease
        assert lease is not None
        if sequence.follows_load:
            self._settle_load(sequence, draft)  # if it has not ended, the pass waits at the gate again
            return True
        if lease.loading:
            if lease.gate is None:
                return False
            sequence.follow_load()
            sequence.course.computes(now)
            return True
        if sequence.awaits_load:
            sequence.start(lease)
            sequence.course.computes(now)
            self._admit(sequence, draft)
        return True

    def _settle_load(self, sequence: Sequence, draft: Draft) -> bool:
        """Whether the load that a sequence follows has ended. If it failed, the sequence goes on without."""
        lease = sequence.lease
        assert lease is not None
        if lease.loading:
            return False
        sequence.follows_load = False
        sequence.num_computed = min(sequence.num_computed, lease.num_tokens)
        self._admit(sequence, draft)
        return True

    def _admit(self, sequence: Sequence, draft: Draft) -> None:
        """Say once what the cache had of the prompt."""
        if sequence.admission is None and sequence.lease is not None:
            sequence.admission = Admission(sequence.num_given, sequence.lease.hit)
            sequence.stop_prefetch()
            draft.admitted.append(sequence)

    def _chunk_tokens(self, sequence: Sequence, draft: Draft) -> int:
        scores = draft.scores if sequence.scores else draft.budget
        return min(sequence.num_missing, self._config.max_chunk_tokens, draft.budget, scores)

    def _make_room(self, sequence: Sequence, num_tokens: int, draft: Draft, now: float) -> bool:
        """Get slots for the next tokens of `sequence`, pausing others for it.

        False: it was paused itself, or waits for what a copy still holds that somebody began who is gone.
        """
        while not self._slots.secure(sequence, num_tokens, now):
            if self._slots.will_come(sequence, num_tokens):
                return False
            victim = self._slots.whom_to_pause(sequence, self._running, self._shares(self._line.front()))
            self._pause(victim, draft, now)
            # Alone and out of slots it holds duplicates of what the cache has; it starts again without them, and fits.
            if victim is sequence:
                return False
        return True

    def _pause(self, sequence: Sequence, draft: Draft, now: float) -> None:
        draft.drop(sequence)
        draft.paused.append(sequence)
        self._running.remove(sequence)
        self._in_flight.ended(sequence)
        self._release(sequence, now)
        sequence.num_pauses += 1
        sequence.course.paused(now)
        sequence.key = sequence.known_key(sequence.num_known)
        self._push(sequence)

    def _found(self, sequence: Sequence, hit: Hit) -> None:
        """Somebody has looked what a sequence would hit: that, and what it waits for, it will not have to compute."""
        self._backlog.found(sequence, max(hit.total, self._in_flight.awaited_tokens(sequence)))

    def _push(self, sequence: Sequence) -> None:
        self._line.push(sequence)
        self._backlog.waits(sequence, self._hits.of(sequence).total)

    def _release(self, sequence: Sequence, now: float) -> None:
        lease = sequence.lease
        assert lease is not None
        self._adapters.give_back(sequence)
        num_computed = min(sequence.num_computed, lease.num_tokens)  # less if a load failed that it followed
        sequence.stop()
        with lease:
            if not lease.loading:
                lease.commit(sequence.known_key(num_computed), now=now)

    def _start_waiting(self, draft: Draft, front: Mapping[str, Front], now: float) -> None:
        blocked: dict[str, Sequence] = {}  # by tenant, the first one for which there is no room

        def is_ready(sequence: Sequence) -> bool:
            return sequence.request.tenant not in blocked and self._is_ready_to_start(sequence, now)

        for sequence in self._line.candidates(now, is_ready):
            if draft.budget == 0:
                return
            if sequence.scores and draft.scores == 0:
                continue
            hit = self._hits.of(sequence)
            # Whether a leader loads what lies on the host or has to compute it: one does it for all.
            if self._in_flight.follow(sequence, hit.device):
                self._found(sequence, hit)
                continue
            num_slots = self._slots.lacking(sequence, hit.device)
            # Who is first and finds no room is overtaken by others now and then, not for ever.
            if (
                self._contention.may_overtake(sequence, blocked.values(), num_slots)
                and self._has_place(sequence, draft, front, now)
                and self._has_slots(sequence, draft, front, now)
                and self._start(sequence, draft, now)
            ):
                self._contention.overtook(blocked.values(), num_slots)
                continue
            if not blocked and self.num_running < self._config.max_running:
                self._cache.prepare(num_slots, now=now)
            self._contention.blocked(sequence, num_slots)
            blocked[sequence.request.tenant] = sequence
            if len(blocked) == min(MAX_LOOKS, len(front)):
                return

    def _has_place(self, sequence: Sequence, draft: Draft, front: Mapping[str, Front], now: float) -> bool:
        """Whether one more can run. If others have more than their share of the places, one of them pauses for it."""
        if self.num_running < self._config.max_running:
            return True
        shares = self._shares(front)
        if not self._contention.may_pause_others(sequence) or not shares.has_place_for(sequence.request.tenant):
            return False
        victim = shares.gives_place_to(sequence)
        if victim is not None:
            self._pause_for(sequence, victim, draft, now)
        return victim is not None

    def _has_slots(self, sequence: Sequence, draft: Draft, front: Mapping[str, Front], now: float) -> bool:
        """Whether a waiting sequence has slots to start. If others have more than their share of them, some pause."""
        hit_tokens = self._hits.of(sequence).device
        while not self._slots.fits(sequence, hit_tokens, self._running):
            shares = self._shares(front)
            needed = self._slots.lacking(sequence, hit_tokens)
            victim = shares.gives_slots_to(sequence)
            if (
                victim is None
                or not self._contention.may_pause_others(sequence)
                or not shares.has_slots_for(sequence.request.tenant, needed)
            ):
                return False
            self._pause_for(sequence, victim, draft, now)
        return True

    def _pause_for(self, sequence: Sequence, victim: Sequence, draft: Draft, now: float) -> None:
        self._contention.paused_other(sequence)
        self._pause(victim, draft, now)

    def _shares(self, front: Mapping[str, Front]) -> Shares:
        return Shares(self._running, front, self._config.max_running, self._cache.num_slots)

    def _is_ready_to_start(self, sequence: Sequence, now: float) -> bool:
        if self._in_flight.is_following(sequence):
            return False
        if sequence.prefetch is not None:
            if sequence.prefetch.pending:
                return False  # for a bounded time
            sequence.course.prefetched(now)
        return self._adapters.is_ready(sequence, now)

    def _start(self, sequence: Sequence, draft: Draft, now: float) -> bool:
        lease = self._cache.acquire(
            sequence.key,
            now=now,
            max_tokens=sequence.max_cached_tokens,
            priority=sequence.request.priority,
            tenant=sequence.request.tenant,
            prefetched=sequence.prefetch,
        )
        # Asked once more, because what it hits can't be evicted for it any longer.
        fits = self._slots.fits(sequence, lease.num_tokens, self._running)
        if fits:
            lease.load_back(now=now)
        cached_tokens = lease.num_slots  # those of a load back that has begun included
        sequence.start(lease)
        num_tokens = 0 if lease.loading else self._chunk_tokens(sequence, draft)
        if not (fits and (lease.loading or self._slots.secure(sequence, num_tokens, now))):
            sequence.stop()
            lease.release()
            return False
        self._line.start(sequence, cached_tokens)
        self._backlog.left(sequence)
        self._hits.forget(sequence)
        self._contention.forget(sequence)
        self._adapters.take(sequence, now)
        insort(self._running, sequence, key=_PRECEDENCE)
        self._in_flight.started(sequence)
        sequence.course.started(now)
        draft.started.append(sequence)
        if not sequence.awaits_load:
            self._admit(sequence, draft)
            draft.add(sequence, num_tokens)
        return True
