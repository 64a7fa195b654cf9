"""Where a forward pass follows loads that are under way: before a layer reads slots, all loads have brought that layer.

Knows gates and no copies: a gate is opened by whoever copies (`hicache.copies.transfer.LayerGate`), where that is worth
it. Copies on the CPU open none: they share their cores and their memory with the forward pass, which would wait for
them under way instead of before.
"""

from collections.abc import Sequence

from worker.batch import LayerGate


class AllGates:
    """Waits at each of several gates, once where several sequences name the same. With none it costs nothing."""

    def __init__(self, gates: Sequence[LayerGate]) -> None:
        self._gates = tuple(dict.fromkeys(gates))

    def wait(self, layer: int) -> None:
        for gate in self._gates:
            gate.wait(layer)
