"""Measures at the start how fast loads are, so that the first decisions are not guesses."""

import time
from typing import Final

import numpy as np

from hicache.copies.cost import LoadCostModel
from hicache.copies.transfer import Copy, Direction, TicketState, Transfer

# Short ones for the latency, long ones for the speed; twice, as the first touch of anything is slow.
_LENGTHS: Final = (64, 64, 1_024, 1_024)
_POLL_S: Final = 0.001


def calibrate(model: LoadCostModel, transfer: Transfer, *, num_slots: int, timeout_s: float) -> bool:
    """Load slots 0 … of both pools, which nobody must use yet and which must hold the same, and let `model` learn.

    `num_slots` is what the smaller pool has. Return whether all loads ended well; if not, the model knows less, or
    nothing. Raises TimeoutError if one has not ended in time: it may still write its slots, so nobody can use the pool.
    """
    deadline = time.monotonic() + timeout_s
    for length in _LENGTHS:
        slots = np.arange(min(length, num_slots), dtype=np.int32)
        ticket = transfer.submit(Copy(Direction.LOAD, slots, slots))
        while ticket.pending:
            if time.monotonic() > deadline:
                raise TimeoutError(f"loading {len(slots)} tokens from the host took longer than {timeout_s:g} s")
            time.sleep(_POLL_S)
        if ticket.state is not TicketState.DONE:
            return False
        model.observe_load(len(slots), ticket.seconds, now=time.monotonic())
    return True
