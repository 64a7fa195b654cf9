"""One request's way over workers: one after the other, until it has ended. Its client sees one stream.

    at a worker ──── it fails on the request, is lost, shuts down, or has no room
        ▲                    │ what was sent is remembered
        │                    ▼
        └── sent to ◄── moving: a pause, and a worker that has not failed on it
            another          │ there is none, or it has moved too often
                             ▼
                       the stream ends with what the worker's failure means

Belongs to the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from gateway.config import FailoverConfig
from gateway.dispatch.arrivals import WaitObserver
from gateway.dispatch.backoff import backoff_s
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.explanation import Explanation
from gateway.dispatch.generation import Generation, submit_message
from gateway.dispatch.link import WorkerLink
from gateway.dispatch.placing import Ask, NoPlaceError, Placing, Tried, Why, come_again_in_s
from gateway.dispatch.progress import Again, DivergedError, Progress
from gateway.dispatch.stream import TokenStream
from gateway.dispatch.verdicts import Fault, Verdict, failed, lost, verdict_on
from gateway.errors import GatewayError, InternalError, StreamLostError, UnavailableError
from radixgate.v1 import worker_pb2

_log = structlog.get_logger(__name__)

_SUSPECT_LOSSES: Final = 2
"""So many workers were lost while they had a request: it may be what kills them."""


class JourneyObserver(WaitObserver, Protocol):
    def request_moved(self, cause: str, outcome: str) -> None: ...

    def move_refused(self, cause: str, why: str) -> None: ...

    def request_shed(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """A request that is to be sent on its way."""

    model: ServedModel
    generation: Generation
    deadline: float  # on the event loop's clock
    traceparent: str = ""  # "": it is not traced
    explanation: Explanation | None = None  # of who asked for one


class _Leg:
    """The part of a journey at one worker."""

    def __init__(self, journey: "Journey", link: WorkerLink, again: Again | None, unfinished: set[int]) -> None:
        self.link = link
        self.sequence_id = 0  # known when it is under way
        self.again = again  # what the client has of what comes, where the request began again
        self.unfinished = unfinished  # completions that the worker computes
        self.brought = False  # something that the client had not had
        self._journey = journey

    def heard(self, output: worker_pb2.SequenceOutput) -> None:
        self._journey.heard(self, output)

    def lost(self, fault: Fault) -> None:
        self._journey.ended_at(self, lost(self.link.address, fault))

    def leave(self) -> None:
        """Nothing more is wanted of the worker."""
        (self.link.cancel if self.unfinished else self.link.done)(self.sequence_id)


@dataclass(slots=True)
class _Record:
    """What happened on the way so far."""

    tried: Tried = field(default_factory=Tried)
    moves: int = 0  # those that count
    attempts: int = 0  # all
    losses: int = 0  # workers that were lost while they had it
    stands_since: float | None = None  # when it last lost a worker that had brought something, on the loop's clock


class Journey:
    """Feeds `stream` from whichever worker the request is at.

    Invariant: it is at a worker (`_leg`), or moving (`_moving`), or neither, once its stream has ended.
    """

    def __init__(
        self,
        order: Order,
        placing: Placing,
        config: FailoverConfig,
        observer: JourneyObserver,
        make_stream: Callable[[Callable[[bool], None]], TokenStream],
        on_end: Callable[["Journey"], None],
    ) -> None:
        self._order = order
        self._placing = placing
        self._config = config
        self._observer = observer
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._progress = Progress(order.generation.sampling.n)
        self._record = _Record()
        self._leg: _Leg | None = None
        self._moving: asyncio.Task[None] | None = None
        self.stream = make_stream(self._closed)

    async def begin(self) -> None:
        """Send the request to its first worker; wait for one if there is none. Raises GatewayError."""
        try:
            await self._find_worker(self._config.wait_for_worker_s)
        except NoPlaceError as error:
            self._tell_if_shed(error.why)
            self.stream.close()
            raise error.error from None
        except BaseException:
            self.stream.close()
            raise

    async def _find_worker(self, wait_s: float) -> str:
        """Send the request to a worker. Return how. Raises NoPlaceError."""
        order, progress, begun = self._order, self._progress, self._progress.begun
        continued = progress.continued() if begun else []
        generation = order.generation
        key = generation.key(progress.only_tokens() if continued else ())
        ask = Ask(order.model, generation, key, self._record.tried, begun)
        wait_s = min(wait_s, order.deadline - self._loop.time())
        link, choice = await self._placing.place(ask, wait_s)
        if self.stream.ended:  # while it waited, and whoever reads is told why; a worker would compute it for nobody
            return "ended"
        if order.explanation is not None:
            order.explanation.chosen(choice.worker, choice.explanation)
        submit = submit_message(generation, order.deadline - self._loop.time(), order.traceparent)
        submit.continued.extend(continued)
        unfinished = {each.index for each in continued} or set(range(generation.sampling.n))
        again = progress.again() if begun and not continued else None
        self._leg = leg = _Leg(self, link, again, unfinished)
        leg.sequence_id = link.submit(submit, key, leg)
        return "continued" if continued else "begun_again"

    # ------------------------------------------------------------------------------------------- the worker's side

    def heard(self, leg: _Leg, output: worker_pb2.SequenceOutput) -> None:
        """The worker of a leg has news."""
        if leg is not self._leg:
            return
        if output.WhichOneof("end") == "error":
            self.ended_at(leg, verdict_on(output.error))
            return
        if output.HasField("finish_reason"):
            leg.unfinished.discard(output.index)
        if output.index not in self._progress.unfinished:
            return
        if leg.again is not None:
            try:
                leg.again.leave_out(output)
            except DivergedError:
                self._leg = None
                leg.leave()
                self._give_up(Verdict(failed(), Fault.FAILED), leg, "diverged")
                return
        if self._progress.admitted:
            output.ClearField("admission")
        self._progress.passed_on(output)
        leg.brought = True
        self.stream.feed(output)

    def ended_at(self, leg: _Leg, verdict: Verdict) -> None:
        """The worker of a leg does nothing more for it."""
        if leg is not self._leg:
            return
        self._leg = None
        record, fault = self._record, verdict.fault
        if fault is None:
            if verdict.refuses_what_was_begun:
                self._give_up(verdict, leg, "refused")
            else:
                self.stream.fail(verdict.error)
            return
        if fault is Fault.OVERLOADED:
            record.tried.full.add(leg.link.address)
        else:
            record.tried.failed.add((leg.link, leg.link.connection))
        if fault.is_loss:
            record.losses += 1
        if leg.brought or record.stands_since is None:
            record.stands_since = self._loop.time()
        if self._counts(fault):
            record.moves += 1
        if record.moves > self._config.max_moves or self._config.max_moves == 0:
            self._give_up(verdict, leg, "off" if self._config.max_moves == 0 else "moves")
            return
        if self._order.explanation is not None:
            self._order.explanation.moved(leg.link.address, fault.value, self._progress.num_tokens)
        self._moving = asyncio.create_task(self._move(leg, verdict), name="move of a request")

    def _counts(self, fault: Fault) -> bool:
        """Workers that go one after the other, in order, are no reason to end a stream; neither is a full line for one
        whose client waits for its end.
        """
        return fault is not Fault.SHUTTING_DOWN and not (fault is Fault.OVERLOADED and self._progress.begun)

    # ------------------------------------------------------------------------------------------------- on the move

    async def _move(self, left: _Leg, verdict: Verdict) -> None:
        fault = verdict.fault
        assert fault is not None
        try:
            how = await self._sent_elsewhere(fault)
        except NoPlaceError as error:
            self._moving = None
            self._give_up(verdict, left, error.why.value, error)
        except Exception:  # noqa: BLE001 - outermost for one request: its client must hear of an end
            self._moving = None
            _log.exception("move failed", request_id=self._order.generation.request_id)
            self.stream.fail(InternalError("an unexpected error; the gateway's log tells more"))
        else:
            self._moving = None
            self._observer.request_moved(fault.value, how)
            self._log_move(left, fault, how)

    async def _sent_elsewhere(self, fault: Fault) -> str:
        config, record = self._config, self._record
        stands_since = record.stands_since or self._loop.time()
        while True:
            await asyncio.sleep(backoff_s(config.backoff_initial_s, config.backoff_max_s, record.attempts))
            record.attempts += 1
            left_s = stands_since + config.wait_for_worker_s - self._loop.time()
            try:
                return await self._find_worker(left_s if fault.may_pass or self._progress.begun else 0.0)
            except NoPlaceError as error:
                # A client that has the half of an answer can wait for a place in some line.
                if error.why is not Why.OVERLOADED or not self._progress.begun or left_s <= 0:
                    raise
                record.tried.full.clear()

    def _log_move(self, left: _Leg, fault: Fault, how: str) -> None:
        generation, record = self._order.generation, self._record
        _log.warning(
            "request moved",
            request_id=generation.request_id,
            tenant=generation.tenant,
            model=self._order.model.name,
            cause=fault.value,
            left=left.link.address,
            taken_by=self._leg.link.address if self._leg is not None else "",
            how=how,
            tokens=self._progress.num_tokens,
            attempts=record.attempts,
        )
        if fault.is_loss and record.losses >= _SUSPECT_LOSSES:
            _log.error(
                "workers were lost one after the other while they had this request; does it kill them?",
                request_id=generation.request_id,
                tenant=generation.tenant,
                losses=record.losses,
            )

    # ---------------------------------------------------------------------------------------------------- the end

    def _give_up(self, verdict: Verdict, left: _Leg, why: str, no_place: NoPlaceError | None = None) -> None:
        """End the stream: the request cannot go on at its worker, and not elsewhere, `why` says what is in the way."""
        cause = verdict.fault.value if verdict.fault is not None else "refused"
        generation = self._order.generation
        self._observer.move_refused(cause, why)
        if verdict.fault is Fault.OVERLOADED:
            self._tell_if_shed(Why.OVERLOADED)
        _log.warning(
            "request cannot move",
            request_id=generation.request_id,
            tenant=generation.tenant,
            cause=cause,
            why=why,
            left=left.link.address,
            tokens=self._progress.num_tokens,
            losses=self._record.losses,
        )
        self.stream.fail(self._last_word(verdict, left.link, cause, why, no_place))

    def _last_word(
        self, verdict: Verdict, left: WorkerLink, cause: str, why: str, no_place: NoPlaceError | None
    ) -> GatewayError:
        sent, moves = self._progress.num_tokens, self._record.attempts
        if self._progress.begun and why != "off":
            return StreamLostError(cause=cause, why=why, worker=left.address, sent_tokens=sent, moves=moves)
        if no_place is not None and no_place.why in {Why.ADAPTER, Why.OVERLOADED}:
            return no_place.error
        if why == "moves" and self._record.losses >= _SUSPECT_LOSSES:
            return InternalError(  # which nobody sends again by itself, as it would a request to a worker that was lost
                f"{self._record.losses} workers were lost one after the other while they had this request",
                reason="WORKER_FAILED",
            )
        error = verdict.error
        error.metadata.update(why=why, sentTokens=str(sent), moves=str(moves))
        if verdict.fault is Fault.OVERLOADED:
            error.retry_after_s = come_again_in_s([left])
        elif no_place is not None and isinstance(error, UnavailableError):
            error.retry_after_s = no_place.error.retry_after_s
        return error

    def _tell_if_shed(self, why: Why) -> None:
        if not self._progress.begun and why in {Why.OVERLOADED, Why.EXPECTED_WAIT}:
            self._observer.request_shed(why.value)

    def _closed(self, worker_is_done: bool) -> None:
        """The stream has ended, whoever ended it."""
        moving, self._moving = self._moving, None
        if moving is not None:
            moving.cancel()
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.leave()
        self._on_end(self)
