"""Which account a namespace counts for, as shares of tenants come and go. Moves counts and places in queues, no slots.

Nothing may have been dropped that was not looked at yet: it would be counted where it is no longer.
"""

from collections.abc import Collection, Iterator, Sequence

from hicache.keys import Namespace
from hicache.radix.node import Account, Node, Space
from hicache.radix.shares import COMMON, Shares, Terms
from hicache.radix.tree import RadixTree


class Accounts:
    """Opens and closes accounts. Invariant: a namespace counts for the account of its tenant."""

    def __init__(self, tree: RadixTree, shares: Shares) -> None:
        self._tree = tree
        self._shares = shares

    def contradicts(self, namespaces: Sequence[Namespace], tenant: str) -> bool:
        """Whether a key with these namespaces, used by `tenant`, says something else of one than is known."""
        spaces = self._tree.roots.spaces
        own = spaces.get(namespaces[-1])
        if own is not None and own.tenant not in {tenant, COMMON}:
            return True
        return any((space := spaces.get(each)) is not None and space.tenant != COMMON for each in namespaces[:-1])

    def make_public(self, namespaces: Sequence[Namespace], tenant: str) -> None:
        """Let those namespaces belong to nobody that several tenants use: all but the last, and that if it is not the
        tenant's.
        """
        for namespace in namespaces:
            space = self._tree.roots.spaces.get(namespace)
            if space is not None and (namespace != namespaces[-1] or space.tenant != tenant):
                space.tenant = COMMON
                self._move(space, self._shares.common)

    def change(self, tenant: str, terms: Terms, held: Collection[Node]) -> None:
        """Open or close the account of a tenant, and move there what it has. `held` are the nodes that leases hold."""
        if self._shares.of(tenant) is self._shares.common:
            self._make_room()
            if self._tree.queues.alone:
                # Until now nobody counted.
                self._shares.common.locked_bytes = sum(len(node.value) for node in held)
            account = self._shares.open(tenant)
            self._tree.queues.account_opened()
            self._move_all(tenant, account)
            self._shares.set(tenant, terms)
        else:
            self._move_all(tenant, self._shares.common)
            self._close(tenant)

    def _make_room(self) -> None:
        unused = self._shares.unused()
        if unused:
            self._close(unused)

    def _close(self, tenant: str) -> None:
        index = self._shares.of(tenant).index
        self._shares.close(tenant)
        self._tree.queues.account_closed(index)

    def _move_all(self, tenant: str, account: Account) -> None:
        for space in self._tree.roots.spaces.values():
            if space.tenant == tenant:
                self._move(space, account)

    def _move(self, space: Space, account: Account) -> None:
        """Count a namespace for another account, in whose queues its nodes wait in the same order."""
        before, space.account = space.account, account
        if before is account:
            return
        before.device_bytes -= space.device_bytes
        before.host_bytes -= space.host_bytes
        account.device_bytes += space.device_bytes
        account.host_bytes += space.host_bytes
        waiting: list[Node] = []
        for node in _nodes_of(space):
            if node.lock_ref and not self._tree.queues.alone:
                before.locked_bytes -= len(node.value)
                account.locked_bytes += len(node.value)
            if node.queue is not None:
                waiting.append(node)
        waiting.sort(key=lambda node: node.ticket)
        for node in waiting:
            self._tree.queues.replace(node)


def _nodes_of(space: Space) -> Iterator[Node]:
    pending = list(space.roots)
    while pending:
        node = pending.pop()
        if not node.is_root:
            yield node
        pending.extend([child for child in node.children.values() if not child.is_root])
