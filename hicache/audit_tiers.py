"""Recomputes who holds which host slots. Reads everything, changes nothing, may be slow."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hicache.host import HostSlots
from hicache.keys import Int32Array
from hicache.radix.audit_queues import reach, require
from hicache.radix.node import Node
from hicache.radix.tree import RadixTree


def audit_host(
    tree: RadixTree,
    limbo: Sequence[Node],
    ghosts: Sequence[Node],
    host: HostSlots,
    fetching: Sequence[Int32Array],
    waiting: Sequence[Node | None],
) -> None:
    """Raise InvariantError unless every host slot has one owner, and every node counts who needs its host slots.

    `fetching` are the slots of fetches, `waiting` the nodes that leases may load back, or fetches will hang below.
    """
    alive = [*reach(tree.roots.tops.values()), *reach(limbo)]
    outside = list(dict.fromkeys(ghosts))
    leases = Counter(waiting)
    for node in alive:
        require(
            node.host_ref_counter == len(node.holders) + leases[node],
            f"host_ref_counter is {node.host_ref_counter}, not {len(node.holders)} holders and {leases[node]} waiting",
        )
    for ghost in outside:
        require(ghost.host_ref_counter == len(ghost.holders) > 0, "a ghost outlives its holders")
        require(all(ghost in holder.nodes for holder in ghost.holders), "a holder does not know its ghost")
    held = [np.frombuffer(node.host_value, np.int32) for node in (*alive, *outside)]
    owned = np.concatenate([host.free_slots(), *held, *fetching])
    require(len(owned) == host.num_slots, f"{len(owned)} host slots have an owner, there are {host.num_slots}")
    require(
        bool((np.sort(owned) == np.arange(host.num_slots)).all()), "a host slot has two owners, and another one none"
    )
