"""Which nodes may leave a tier, and in which order. Knows nodes, policies and shares; no slots, no clock.

Each account has four queues of unlocked nodes below which nothing unsettled is on the device:

    ready    settled leaves: dropping their device slots loses nothing
    flying   leaves on their way to the host; dropped in need, and then lost
    dirty    other leaves: next to be mirrored, and dropped before that only in need
    inner    others that are no leaves: next to be mirrored, too, and not to be dropped before what is below them

A leaf is one that has nothing below it on the device. Without a host tier all of them are dirty, and they are exactly
the unlocked leaves. On the host may go

    spare    copies of what is on the device and not settled: nobody needs them there yet
    cold     leaves that are on the host alone
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from sys import maxsize

from hicache.radix.node import Account, Node
from hicache.radix.policy import EvictionPolicy
from hicache.radix.shares import Shares
from hicache.radix.victims import Victims


class Queues:
    """The order of eviction. Invariant: every node that belongs into a queue is in that one, and in no other."""

    def __init__(self, policy: EvictionPolicy, shares: Shares) -> None:
        accounts = shares.accounts
        self.policy = policy
        self.accounts = accounts
        self._tickets = count(1)
        # By the index of their account.
        self.ready: list[Victims] = []
        self.flying: list[Victims] = []
        self.dirty: list[Victims] = []
        self.inner: list[Victims] = []
        self.cold: list[Victims] = []
        self.spare: OrderedDict[Node, None] = OrderedDict()  # oldest first
        self.fixed: dict[Node, None] = {}  # below them hangs what was dropped: its path, which must not change
        self.settled_bytes = 0
        self.alone = True
        for _ in accounts:
            self.account_opened()

    @property
    def by_account(self) -> tuple[list[Victims], ...]:
        """All queues of victims, each kind by the index of their account."""
        return (self.ready, self.flying, self.dirty, self.inner, self.cold)

    def account_opened(self) -> None:
        """One more account is there, behind the others."""
        for queues in self.by_account:
            queues.append(Victims(self.policy, self._tickets))
        self.alone = len(self.ready) == 1

    def account_closed(self, index: int) -> None:
        """An account without nodes is gone, and the last one has taken its place."""
        for queues in self.by_account:
            assert not len(queues[index]), "an account is closed that has something to evict"
            queues[index] = queues[-1]
            queues.pop()
        self.alone = len(self.ready) == 1

    # Keeping nodes where they belong

    def place(self, node: Node) -> None:
        """Enter a node that is in no queue where it belongs, if it belongs anywhere."""
        space = node.space
        if space is None:
            return
        account = space.account.index
        if node.host_value:
            self._place_copy(node)
        if node.value:
            if node.lock_ref or node.blockers:
                return
            if node.device_children:
                if node.settled or node.mirroring:
                    return
                queue = self.inner[account]
            elif node.settled:
                queue = self.ready[account]
            else:
                queue = self.flying[account] if node.mirroring else self.dirty[account]
        elif node.children or node.host_ref_counter or not node.host_value or node in self.fixed:
            return
        else:
            queue = self.cold[account]
        node.queue = queue
        queue.add(node)

    def withdraw(self, node: Node) -> None:
        """Take a node out of the queue it is in, if it is in one."""
        if node.queue is not None:
            node.queue.discard(node)
            node.queue = None

    def replace(self, node: Node) -> None:
        """Something of a node changed that its queue, or its place there, depends on."""
        if node.queue is not None:
            node.queue.discard(node)
            node.queue = None
        self.place(node)

    def forget(self, node: Node) -> None:
        """A node leaves the tree, or what it had on the host."""
        self.withdraw(node)
        self.spare.pop(node, None)

    def _place_copy(self, node: Node) -> None:
        if node.value and not node.settled and not node.mirroring and not node.host_ref_counter:
            self.spare.setdefault(node)
        else:
            self.spare.pop(node, None)

    # Children that come, go and change

    def child_arrived(self, above: Node | None) -> None:
        """`above` has one more child on the device, an unsettled one."""
        if above is not None:
            above.device_children += 1
            self._block(above)

    def child_left(self, above: Node | None, *, settled: bool) -> None:
        """`above` has one child less on the device."""
        if above is None:
            return
        above.device_children -= 1
        if not settled:
            self._unblock(above)
        elif not above.device_children:
            self.replace(above)

    def settle(self, node: Node) -> None:
        """The host has all of an unlocked node below which everything is settled: it may go."""
        self.withdraw(node)
        node.settled = True
        self.settled_bytes += len(node.value)
        self.place(node)
        if (above := node.above) is not None:
            inherit(above, node)
            self._unblock(above)

    def unsettle(self, node: Node) -> None:
        """A node is used again, or the host lost it."""
        self.withdraw(node)
        node.settled = False
        self.settled_bytes -= len(node.value)
        self.place(node)
        if (above := node.above) is not None:
            self._block(above)

    def _block(self, node: Node) -> None:
        node.blockers += 1
        if node.blockers == 1:
            if node.settled:
                self.unsettle(node)
            else:
                self.withdraw(node)

    def _unblock(self, node: Node) -> None:
        node.blockers -= 1
        if not node.blockers:
            self.place(node)

    # Choosing

    def next_on_device(self, claimant: Account) -> tuple[Node, int] | None:
        """Return who leaves the device next for `claimant`, and how many bytes of it may; None: nobody may."""
        if self.alone:
            node = _first(self.ready[0], self.flying[0], self.dirty[0])
            return None if node is None else (node, len(node.value))
        return self._choose(
            claimant,
            lambda account: _first(self.ready[account], self.flying[account], self.dirty[account]),
            lambda account: (account.device_bytes, account.fair_bytes, account.floor_bytes),
        )

    def next_on_host(self, claimant: Account) -> tuple[Node, int] | None:
        """Return who leaves the host next for `claimant`, of those that are nowhere else."""
        if self.alone:
            node = _first(self.cold[0])
            return None if node is None else (node, len(node.host_value))
        return self._choose(
            claimant,
            lambda account: self._first_on_host(self.accounts[account], claimant),
            lambda account: (account.host_bytes, account.host_fair_bytes, account.host_floor_bytes),
        )

    def _first_on_host(self, account: Account, claimant: Account) -> Node | None:
        # Nobody has counted before whether there is enough: what is promised to others is not there.
        if account is not claimant and account.host_bytes <= account.host_floor_bytes:
            return None
        return _first(self.cold[account.index])

    def next_to_mirror(self) -> Node | None:
        """Return the unsettled node that would leave the device next."""
        if self.alone:
            return self._next_unsettled(0)
        found = self._choose(
            self.accounts[0],
            self._next_unsettled,
            # Nobody's floor holds here: what a tenant has below it leaves for the tenant's own sake.
            lambda account: (account.device_bytes, account.fair_bytes, 0),
        )
        return None if found is None else found[0]

    def _next_unsettled(self, account: int) -> Node | None:
        nodes = [queue.first() for queue in (self.dirty[account], self.inner[account]) if len(queue)]
        return min(nodes, key=self.policy.rank, default=None)

    def _choose(
        self,
        claimant: Account,
        first: Callable[[int], Node | None],
        held: Callable[[Account], tuple[int, int, int]],
    ) -> tuple[Node, int] | None:
        """Those above their fair part first, the coldest of them; then the claimant itself; then whoever is above its
        floor, as far as that. Whoever asks has counted before that this is enough; what is left then hangs below a
        public prefix whose slots were counted on.
        """
        above_fair: list[tuple[Node, int]] = []
        above_floor: list[tuple[Node, int]] = []
        promised: list[tuple[Node, int]] = []
        own: tuple[Node, int] | None = None
        for account in self.accounts:
            node = first(account.index)
            if node is None:
                continue
            size, fair, floor = held(account)
            if account is claimant:
                own = node, maxsize
            if size > fair:
                above_fair.append((node, size - fair))
            elif size > floor:
                above_floor.append((node, size - floor))
            else:
                promised.append((node, maxsize))
        return self._coldest(above_fair) or own or self._coldest(above_floor) or self._coldest(promised)

    def _coldest(self, candidates: Sequence[tuple[Node, int]]) -> tuple[Node, int] | None:
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return min(candidates, key=lambda candidate: self.policy.rank(candidate[0]))


def inherit(above: Node, node: Node) -> None:
    """Whoever used a node used what lies above it: said when the node ceases to stand for both."""
    above.last_access_time = max(above.last_access_time, node.last_access_time)
    above.priority = max(above.priority, node.priority)
    above.hit_count = max(above.hit_count, node.hit_count)


def _first(*queues: Victims) -> Node | None:
    for queue in queues:
        if len(queue):
            return queue.first()
    return None
