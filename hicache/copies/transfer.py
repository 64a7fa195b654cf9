"""Copies between the device and the host tier, as those see them who order them. Knows slots, no tensors and no tree.

    owner thread                    whoever copies (a thread, a CUDA stream, a test)
    ------------                    ------------------------------------------------
    submit(copy) -> ticket
    polls ticket.state      PENDING    begin, advance (layer by layer), then one of
                            DONE       finish: token i of the copy lies in both of its slots
                            FAILED     fail: what lies on the target side is undefined

A load may open a gate on its way: from then on a reader can be as close behind it as one layer.

A ticket that is no longer PENDING is a promise: nothing reads or writes the copy's slots any more, on neither side, and
both may be given to others. Until then both sides must be held, whatever was cancelled meanwhile.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from hicache.keys import Int32Array

CANCELLED: Final = "cancelled"
CLOSED: Final = "the transfer is closed"


class Direction(Enum):
    MIRROR = "mirror"  # device → host
    LOAD = "load"  # host → device


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Token i lies in `device_slots[i]` and in `host_slots[i]`. No slot may occur twice on the side that is written."""

    direction: Direction
    device_slots: Int32Array  # int32[num_tokens]
    host_slots: Int32Array  # int32[num_tokens]

    def __post_init__(self) -> None:
        if self.device_slots.shape != self.host_slots.shape or self.device_slots.ndim != 1:
            raise ValueError(
                "device_slots and host_slots must be one-dimensional and of one length, "
                f"got shapes {self.device_slots.shape} and {self.host_slots.shape}"
            )

    def __len__(self) -> int:
        return len(self.device_slots)


class TicketState(Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class LayerGate(Protocol):
    """Holds back who reads what a load writes, layer by layer."""

    def wait(self, layer: int) -> None:
        """What the caller's thread does next, or queues next on its stream, comes after the copy of `layer`.

        The load may fail all the same: what was read counts only once its ticket is DONE.
        """
        ...


class Ticket:
    """How far a copy is. Read by its owner from any thread; written by whoever copies, who calls the methods below.

    `state` is written last: who sees it change sees the final values of all the others.
    """

    __slots__ = ("_cancelled", "copy", "error", "gate", "layers_done", "seconds", "state")

    def __init__(self, copy: Copy) -> None:
        self.copy: Final = copy
        self.state = TicketState.PENDING
        self.error = ""  # "" unless FAILED
        self.seconds = 0.0  # how long the copying itself took, without waiting; 0.0 until it is done
        self.layers_done = 0  # layers complete so far, in order 0, 1, 2, …; a transfer may leave it at 0
        self.gate: LayerGate | None = None  # None: wait for the end; only some transfers ever open one, for loads
        self._cancelled = False

    @property
    def pending(self) -> bool:
        return self.state is TicketState.PENDING

    def cancel(self) -> None:
        """Wish it away: a copy that has not begun ends as FAILED ("cancelled"), one under way may go on to its end."""
        self._cancelled = True

    def begin(self) -> bool:
        """For who copies: whether to begin, or to go on. False: it was cancelled, and is FAILED now."""
        if self._cancelled:
            self.fail(CANCELLED)
        return self.pending

    def advance(self, layers_done: int) -> None:
        """For who copies: layers 0 … layers_done - 1 are complete, and will not be written again."""
        assert self.pending
        assert layers_done >= self.layers_done
        self.layers_done = layers_done

    def open(self, gate: LayerGate) -> None:
        """For who copies: `gate` can be waited at for every layer, and doesn't block the one who asks for long."""
        assert self.pending
        self.gate = gate

    def finish(self, seconds: float) -> None:
        """For who copies: the last touch of the slots is over."""
        assert self.pending
        self.seconds = seconds
        self.state = TicketState.DONE

    def fail(self, error: str) -> None:
        """For who copies: it will not be completed, and its slots are not touched any more."""
        assert self.pending
        self.error = error
        self.state = TicketState.FAILED


class Transfer(Protocol):
    """Copies between one device pool and one host pool.

    Several copies may be in flight; in which order they end is not promised. Loads go before mirrors: somebody waits
    for them.
    """

    def submit(self, copy: Copy) -> Ticket:
        """Return at once, whatever the copy comes to: one that goes wrong ends in its ticket."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End: what is pending becomes FAILED. Return whether everything has ended within `timeout_s`.

        False means that a copy is still under way: its ticket stays PENDING and its slots must not be reused. Closing
        again is harmless.
        """
        ...
