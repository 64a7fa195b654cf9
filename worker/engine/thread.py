"""The thread that owns the engine: commands come in through a queue, outputs leave through a callback."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog

from hicache.cache import Holdings
from hicache.events import Snapshot
from hicache.keys import Namespace
from worker.engine.delivery import Deliver, Delivery
from worker.engine.departures import OnGone
from worker.engine.engine import DuplicateSequenceError, Engine
from worker.engine.faults import report
from worker.engine.ports import CacheContents, Load, Request, SequenceId, SequenceOutput
from worker.engine.stall import StallWatch
from worker.errors import Failure, FailureCode

_log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")

_STALLED_WAIT_S = 0.02
"""How long to wait before looking again, when sequences wait and none could start."""

_PENDING_WAIT_S = 0.1
"""How long to sleep at most while copies are under way: one that stalls tells nobody."""

_ABORT_WAIT_S = 5.0
"""How long a drain that is out of time waits for the step in progress."""

_SHUTTING_DOWN = Failure(FailureCode.SHUTTING_DOWN, "the worker is shutting down")


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    at: float


@dataclass(frozen=True, slots=True)
class _Cancel:
    sequence_id: SequenceId


@dataclass(frozen=True, slots=True)
class _AddAdapter:
    revision: str


@dataclass(frozen=True, slots=True)
class _RetireAdapter:
    revision: str
    until: float
    on_gone: OnGone


@dataclass(frozen=True, slots=True)
class _Question:
    put: Callable[[], None]
    unanswered: Callable[[], None]  # where `put` fails


@dataclass(frozen=True, slots=True)
class _Drain:
    deadline: float


@dataclass(frozen=True, slots=True)
class _Wake:
    pass


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Submit | _Cancel | _AddAdapter | _RetireAdapter | _Question | _Drain | _Wake | _Stop


class EngineThread:
    """Runs an engine. `submit`, `cancel`, `drain` and `stop` may be called from any thread.

    `deliver(outputs, load, cache)` is called once for every step, and where something changes without one, in order,
    from one thread that is not the engine's: it may be slow, but only `load` and later outputs get old then. `cache` is
    what has changed in the cache since the call before, or None. A step's news leave as soon as the next one's forward
    pass is under way, or at once where there is nothing to compute. While nothing is to do the thread sleeps.
    """

    def __init__(
        self, engine: Engine, deliver: Deliver, *, clock: Callable[[], float] = time.monotonic, name: str = "engine"
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._clock = clock
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._delivery = Delivery(deliver, f"{name}-delivery")
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._drain_until: float | None = None
        self._drained = threading.Event()
        self._flushed = False
        self._cut_short = False
        self._awake = threading.Event()
        # Guards that nothing enters the queue behind the stop command, where nobody would answer it.
        self._entry = threading.Lock()
        self._entry_closed = False
        self._watch = StallWatch(clock)
        self._told_load: Load | None = None

    def start(self) -> None:
        self._delivery.start()
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Take in a request; it counts as submitted now. Returns at once, and whatever is wrong is delivered."""
        if not self._enter(_Submit(request, self._clock())):
            self._deliver([SequenceOutput(request.sequence_id, finish=_SHUTTING_DOWN)], self._engine.load(), None)

    def cancel(self, sequence_id: SequenceId) -> None:
        """End a sequence before the next step. Returns at once."""
        self._enter(_Cancel(sequence_id))

    def add_adapter(self, revision: str) -> None:
        """Requests submitted from now on may name the adapter. Returns at once."""
        self._enter(_AddAdapter(revision))

    def retire_adapter(self, revision: str, grace_s: float, on_gone: OnGone) -> bool:
        """Take an adapter away once its users have ended, at the latest after `grace_s`. Returns at once.

        `on_gone` is called from the engine's thread then. False: the engine has stopped, and calls nobody.
        """
        return self._enter(_RetireAdapter(revision, self._clock() + grace_s, on_gone))

    def drop_cache(self, namespaces: Sequence[Namespace], on_done: Callable[[Holdings | None], None]) -> bool:
        """Drop what the cache has of namespaces, and say what was free at once. Returns at once.

        `on_done` is called from the engine's thread; with None if that failed. False: the engine has stopped, and calls
        nobody.
        """
        return self._ask(lambda: self._engine.drop_cache(namespaces), on_done)

    def describe_cache(self, on_done: Callable[[CacheContents | None], None]) -> bool:
        """Say what lies in the cache. Returns at once; like `drop_cache`."""
        return self._ask(self._engine.describe_cache, on_done)

    def snapshot_cache(self, on_done: Callable[[Snapshot | None], None]) -> bool:
        """Say all that the cache holds. Returns at once; like `drop_cache`.

        But `on_done` is called from the thread that delivers: behind every event that the snapshot knows of, and before
        any later one.
        """
        return self._enter(_Question(lambda: self._tell_snapshot(on_done), lambda: on_done(None)))

    def wake(self) -> None:
        """Something that the engine waits for has ended. Returns at once; from any thread."""
        if not self._awake.is_set():
            self._awake.set()
            self._enter(_Wake())

    @property
    def has_died(self) -> bool:
        """Whether the thread has ended although nobody told it to stop. From any thread."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._entry_closed

    def stalled_s(self) -> float:
        """For how long nothing has moved although there is something to do, commands that wait included; else 0.

        From any thread, whatever the engine's own is doing.
        """
        return self._watch.stalled_s(commands_wait=not self._commands.empty())

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and let those here end; after `timeout_s` they fail as SHUTTING_DOWN.

        What the cache has then goes to where it outlives the process, in what is left of the time. Blocks until all is
        done. Returns whether all sequences ended by themselves in time.
        """
        self._enter(_Drain(self._clock() + timeout_s))
        return self._drained.wait(timeout_s + _ABORT_WAIT_S) and not self._cut_short

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Fail everything as SHUTTING_DOWN, deliver that, and end the thread. A second call does nothing more.

        Returns False if a forward pass or the consumer didn't return within `timeout_s`; their threads are left behind.
        """
        with self._entry:
            if not self._entry_closed:
                self._entry_closed = True
                self._commands.put(_Stop())
        if self._thread.ident is None:
            return True  # never started
        deadline = self._clock() + timeout_s
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("engine did not stop", timeout_s=timeout_s)
            return False
        return self._delivery.close(max(0.0, deadline - self._clock()))

    def _enter(self, command: _Command) -> bool:
        with self._entry:
            if not self._entry_closed:
                if self._commands.empty():
                    self._watch.entered_first()
                self._commands.put(command)
            return not self._entry_closed

    def _ask(self, question: Callable[[], Answer], on_answer: Callable[[Answer | None], None]) -> bool:
        return self._enter(_Question(lambda: on_answer(question()), lambda: on_answer(None)))

    def _run(self) -> None:
        stalled = False
        while self._take_commands(self._patience(stalled)):
            now = self._clock()
            if self._drain_until is not None and now >= self._drain_until:
                self._cut_off(now)
            stalled = False
            self._watch.looked(self._engine.has_work)
            if self._engine.has_work:
                stalled = not self._step(now)
                if not stalled:
                    self._watch.moved()
            else:
                self._idle(now)
            self._watch.looked(self._engine.has_work)
            if self._drain_until is not None and not self._engine.has_work:
                self._leave(now, self._drain_until)
        self._cut_off(self._clock())
        self._tell()
        self._drained.set()

    def _patience(self, stalled: bool) -> float | None:
        """How long to wait for a command: 0 while there is work, None for as long as it takes."""
        now = self._clock()
        until = [None if self._drained.is_set() else self._drain_until]
        if self._engine.has_work:
            if not stalled:
                return 0.0
            until += [now + _STALLED_WAIT_S, self._engine.next_deadline]
        elif self._engine.pending:
            until.append(now + _PENDING_WAIT_S)
        return min((max(0.0, moment - now) for moment in until if moment is not None), default=None)

    def _take_commands(self, patience_s: float | None) -> bool:
        """Carry out all commands there are, having waited for the first one; False once told to stop."""
        try:
            command = self._commands.get(block=patience_s != 0, timeout=patience_s)
            while True:
                if isinstance(command, _Stop):
                    return False
                self._carry_out(command)
                command = self._commands.get_nowait()
        except Empty:
            return True

    def _carry_out(self, command: _Command) -> None:
        try:
            match command:
                case _Submit(request, at):
                    self._engine.submit(request, at)
                case _Cancel(sequence_id):
                    self._engine.cancel(sequence_id, self._clock())
                case _AddAdapter(revision):
                    self._engine.add_adapter(revision)
                case _RetireAdapter(revision, until, on_gone):
                    self._engine.retire_adapter(revision, until, on_gone)
                case _Question(put):
                    put()
                case _Drain(deadline):
                    self._engine.close()
                    self._drain_until = deadline
                case _Wake():
                    self._awake.clear()
        except DuplicateSequenceError as error:
            # No answer: it would be taken for the end of the sequence that is alive.
            report("sequence id used twice", error, **_whose(command))
        except Exception as error:  # noqa: BLE001 - outermost loop: one command's fault must not end the thread
            report("command failed", error, command=type(command).__name__, **_whose(command))
            if isinstance(command, _Submit):
                failure = Failure(FailureCode.INTERNAL, "the request could not be taken in")
                self._put([SequenceOutput(command.request.sequence_id, finish=failure)])
            if isinstance(command, _Question):
                command.unanswered()

    def _step(self, now: float) -> bool:
        """Make one step, and beside its forward pass deliver the one before; return whether anything came of it."""
        told = 0
        try:
            self._engine.begin(now)
            self._engine.observe_state()
            told = self._tell()
            self._engine.complete()
        except Exception as error:  # noqa: BLE001 - outermost loop: whoever is here now fails, the engine goes on
            report("step failed", error)
            self._engine.abort(Failure(FailureCode.INTERNAL, "the engine failed"), now)
            told += self._tell()
        return told > 0 or self._engine.last_step_tokens > 0

    def _tell(self) -> int:
        """Deliver the news there are; return of how many sequences."""
        outputs = self._engine.take_outputs()
        self._put(outputs)
        return len(outputs)

    def _put(self, outputs: Sequence[SequenceOutput]) -> None:
        self._told_load = self._engine.load()
        self._delivery.put(outputs, self._told_load, self._engine.take_cache_news())

    def _tell_snapshot(self, on_done: Callable[[Snapshot | None], None]) -> None:
        snapshot = self._engine.snapshot_cache()
        self._tell()
        self._delivery.call(partial(on_done, snapshot))

    def _idle(self, now: float) -> None:
        """Let go on what goes on without steps, and deliver what comes of it."""
        try:
            self._engine.idle(now)
            news = self._engine.take_cache_news()
            load = self._engine.load()
            if news is not None or load != self._told_load:
                self._told_load = load
                self._delivery.put([], load, news)
        except Exception as error:  # noqa: BLE001 - outermost loop: what goes on below must not end the thread
            report("what goes on below the engine failed", error)

    def _leave(self, now: float, deadline: float) -> None:
        """Nothing is here any more: bring the cache to safety, as long as there is time."""
        if not self._flushed:
            self._flushed = True
            try:
                self._engine.flush(now)
            except Exception as error:  # noqa: BLE001 - what the cache has is lost; its process must end all the same
                report("flush failed", error)
        if not self._engine.pending or now >= deadline:
            self._drained.set()

    def _cut_off(self, now: float) -> None:
        self._cut_short |= self._engine.has_work
        self._engine.abort(_SHUTTING_DOWN, now)


def _whose(command: _Command) -> dict[str, str]:
    """Return whose command it is, as a field of a line in the log."""
    return {"request_id": command.request.request_id} if isinstance(command, _Submit) else {}
