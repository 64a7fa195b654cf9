"""Recomputes who may leave the tiers, and what every account holds. Reads everything, changes nothing, may be slow."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hicache.errors import InvariantError
from hicache.radix.node import Account, Node, Space
from hicache.radix.queues import Queues
from hicache.radix.tree import RadixTree
from hicache.radix.victims import Victims


def require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def reach(tops: Iterable[Node]) -> list[Node]:
    """Everything from `tops` down, each node once."""
    found: dict[Node, None] = {}
    pending = list(tops)
    while pending:
        node = pending.pop()
        require(node not in found, "a node is reached in two ways")
        found[node] = None
        pending.extend(node.children.values())
    return list(found)


def audit_queues(tree: RadixTree, alive: Sequence[Node]) -> None:
    """Raise InvariantError unless every node waits where its state says, and the counts agree with the nodes.

    `alive` is everything in the tree, and what was dropped and not freed yet.
    """
    queues = tree.queues
    on_device: Counter[Node] = Counter()
    blocking: Counter[Node] = Counter()
    for node in alive:
        above = node.above
        if node.value and above is not None:
            on_device[above] += 1
            blocking[above] += not node.settled
    for node in alive:
        require(node.device_children == on_device[node], "a node counts other children on the device than it has")
        require(node.blockers == blocking[node], "a node counts other unsettled children than it has")
        _check_state(node)
        _check_place(queues, node)
    _check_entries(queues, alive)
    _check_accounts(queues, alive)
    settled = sum(len(node.value) for node in alive if node.settled)
    require(queues.settled_bytes == settled, f"settled_bytes is {queues.settled_bytes}, the nodes make {settled}")


def _check_state(node: Node) -> None:
    require(not node.settled or (bool(node.value) and node.mirrored), "a settled node is not on both tiers")
    require(not node.settled or not (node.lock_ref or node.blockers), "a settled node is used, or one below it is not")
    require(not node.mirroring or bool(node.value and node.host_value), "a mirror has no source or no destination")
    require(node.host_ref_counter >= len(node.holders), "somebody is at work on host slots and is not counted")
    require(bool(node.host_value) or not node.holders, "somebody is at work on host slots that are not there")
    for holder in node.holders:
        require(node in holder.nodes, "a holder does not know its node")


def _expected_queue(queues: Queues, node: Node) -> Victims | None:
    if node.is_root or node.space is None:
        return None
    index = node.space.account.index
    if node.value:
        if node.lock_ref or node.blockers:
            return None
        if node.device_children:
            return None if node.settled or node.mirroring else queues.inner[index]
        if node.settled:
            return queues.ready[index]
        return queues.flying[index] if node.mirroring else queues.dirty[index]
    return None if node.children or node.host_ref_counter or node in queues.fixed else queues.cold[index]


def _check_place(queues: Queues, node: Node) -> None:
    expected = _expected_queue(queues, node)
    require(node.queue is expected, f"a node waits in another queue than its own (for a {_describe(node)} node)")
    require(bool(node.ticket) == (expected is not None), "a ticket names no victim")
    spare = bool(node.value) and node.mirrored and not node.settled and not node.host_ref_counter
    require(
        (node in queues.spare) == spare, f"a {_describe(node)} node is wrongly among the spare copies, or not there"
    )


def _describe(node: Node) -> str:
    tiers = [name for name, value in (("device", node.value), ("host", node.host_value)) if value]
    return "+".join(tiers) or "root"


def _check_entries(queues: Queues, alive: Sequence[Node]) -> None:
    require(set(queues.spare) <= set(alive), "a spare copy belongs to no node")
    for queue in (*queues.ready, *queues.flying, *queues.dirty, *queues.inner, *queues.cold):
        entries = queue.entries()
        require(len(entries) == len(queue), f"{len(entries)} victims are entered, {len(queue)} are counted")
        require(all(node.queue is queue for _, _, node in entries), "a victim is entered in two queues")
        for rank, _, node in entries:
            now = queues.policy.rank(node)
            require(rank == now, f"a victim is entered at rank {rank}, it has {now}")
        if entries:
            coldest = min(entries, key=lambda entry: entry[:2])
            require(queue.first() is coldest[2], "the next victim is not the first of its order")


def _check_accounts(queues: Queues, alive: Sequence[Node]) -> None:
    device: Counter[Space | Account] = Counter()
    host: Counter[Space | Account] = Counter()
    locked: Counter[Account] = Counter()
    for node in alive:
        space = node.space
        assert space is not None
        for owner in (space, space.account):
            device[owner] += len(node.value)
            host[owner] += len(node.host_value)
        if node.lock_ref:
            locked[space.account] += len(node.value)
    for owner in {*device, *queues.accounts}:
        require(owner.device_bytes == device[owner], f"device_bytes is {owner.device_bytes}, it is {device[owner]}")
        require(owner.host_bytes == host[owner], f"host_bytes is {owner.host_bytes}, it is {host[owner]}")
    for account in queues.accounts if not queues.alone else ():
        found = locked[account]
        require(account.locked_bytes == found, f"locked_bytes is {account.locked_bytes}, the nodes make {found}")
