"""The engine: decides what runs in each step, and owns the cache's slots while it does."""

from worker.engine.engine import DuplicateSequenceError, Engine
from worker.engine.limits import ModelLimits
from worker.engine.observer import EngineObserver, NullObserver
from worker.engine.ports import Admission, FinishReason, Load, Request, SequenceId, SequenceOutput
from worker.engine.thread import EngineThread
from worker.engine.timeline import Phase, PhaseInterval, Timeline

__all__ = [
    "Admission",
    "DuplicateSequenceError",
    "Engine",
    "EngineObserver",
    "EngineThread",
    "FinishReason",
    "Load",
    "ModelLimits",
    "NullObserver",
    "Phase",
    "PhaseInterval",
    "Request",
    "SequenceId",
    "SequenceOutput",
    "Timeline",
]
