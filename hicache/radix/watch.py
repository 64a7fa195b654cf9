"""Who wants to know what each tier holds: told by the tree, after the fact. Knows nodes and nothing of who listens."""

from typing import Literal, Protocol

from hicache.radix.node import Node

Tier = Literal["device", "host"]


class TierWatcher(Protocol):
    """Receives every change of what is where. `begin` is the depth in bytes from which on `node` changed, to its end.

    A copy is told of when it is done. While a call lasts, the node still has its path.
    """

    def stored(self, node: Node, begin: int, tier: Tier) -> None:
        """The tier holds it now."""
        ...

    def removed(self, node: Node, begin: int, tier: Tier) -> None:
        """The tier holds it no longer."""
        ...

    def moved(self, node: Node, begin: int) -> None:
        """It left the device, and the host has it."""
        ...


class IgnoredChanges:
    """For caches that nobody watches."""

    def stored(self, node: Node, begin: int, tier: Tier) -> None: ...

    def removed(self, node: Node, begin: int, tier: Tier) -> None: ...

    def moved(self, node: Node, begin: int) -> None: ...
