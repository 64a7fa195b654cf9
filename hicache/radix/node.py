"""The nodes of the radix tree, and the roots among them by namespace. State that the tree owns and keeps consistent."""

from collections.abc import Iterable
from typing import Protocol

from hicache.keys import TOKEN_BYTES, Namespace

# What a child hangs by: the packed first page of its key, or the namespace that begins below its parent.
Edge = bytes | Namespace


class Queue(Protocol):
    """Where nodes wait for their eviction; it numbers them in `ticket`."""

    def add(self, node: "Node") -> None: ...
    def discard(self, node: "Node") -> None: ...


class Holder(Protocol):
    """Who reads or writes host slots over a while: a copy between the tiers, or pages on their way to storage."""

    @property
    def loads(self) -> bool:
        """Whether it is a load back, so that somebody else need not start another one."""
        ...

    @property
    def nodes(self) -> "list[Node]":
        """The nodes whose host slots it needs: who splits one of them adds the new part."""
        ...


class Node:
    """An edge with a run of tokens, and the slots that hold their KV on the device, on the host, or on both.

    `key` holds packed int32 tokens; `value` (device slots) and `host_value` (host slots) are each as long as the key,
    or empty where the tier does not hold the node. Roots, which separate namespaces, hold nothing and have no key; any
    other node lies in at least one tier, and whatever lies on the device has its whole path there. While it is
    `mirroring`, its host slots are still being filled.

    `depth` is the length in bytes of the whole path from the top down to the end of this node.

    `lock_ref` counts the leases that end here plus the children whose own count is not 0, so that taking or dropping a
    lock climbs only as far as a count changes between 0 and 1. Everything above a locked node is locked.
    `host_ref_counter` counts who needs the host slots: leases that may load them back, and the `holders`, which are at
    work on them.

    A node is `settled` when it is among the coldest, has its copy on the host, and everything below it that is on the
    device is settled too: it can leave the device without loss. `device_children` counts the children on the device
    (those of a root count for the barrier above it), `blockers` those of them that are not settled.

    `last_access_time`, `priority` and `hit_count` are those of the requests that ended at this node, not of those that
    passed through: whoever uses a child uses its parent, and a child that is evicted passes all three on. `stored_time`
    is when its newest token came.

    `recent` is a child on the device, no root, by which a match went on last, or None: the next one often goes there
    again, and then needs no look-up.

    `hash_value` holds the names of the storage pages that end in this node, or is None until somebody asks. `space` is
    None once the namespace was dropped and the node was looked at: it is out of reach and lives on for the leases that
    hold it. `queue` is where it waits for its eviction, if it does, under the number `ticket`.
    """

    __slots__ = (
        "blockers",
        "children",
        "depth",
        "device_children",
        "hash_value",
        "hit_count",
        "holders",
        "host_ref_counter",
        "host_value",
        "key",
        "last_access_time",
        "lock_ref",
        "mirroring",
        "parent",
        "priority",
        "queue",
        "recent",
        "settled",
        "space",
        "stored_time",
        "ticket",
        "value",
    )

    def __init__(
        self,
        key: bytearray,
        value: bytearray,
        parent: "Node | None",
        space: "Space | None",
        now: float,
        priority: int = 0,
    ) -> None:
        self.key = key
        self.value = value
        self.host_value = NO_SLOTS
        self.parent = parent
        self.space = space
        self.depth: int = len(key) if parent is None else parent.depth + len(key)
        self.children: dict[Edge, Node] = NO_CHILDREN
        self.recent: Node | None = None
        self.device_children = 0
        self.blockers = 0
        self.settled = False
        self.mirroring = False
        self.holders: tuple[Holder, ...] = ()
        self.lock_ref = 0
        self.host_ref_counter = 0
        self.hit_count = 0
        self.priority = priority
        self.stored_time = now
        self.last_access_time = now
        self.hash_value: bytes | None = None
        self.queue: Queue | None = None
        self.ticket = 0

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        return not self.key

    @property
    def mirrored(self) -> bool:
        """Whether the host has all of it, copied and done."""
        return bool(self.host_value) and not self.mirroring

    @property
    def above(self) -> "Node | None":
        """The nearest node above that is no root."""
        parent = self.parent
        return parent if parent is None or parent.key else parent.parent

    def touch(self, now: float, priority: int) -> None:
        """Note who used it last. It is in no queue, or its place there is taken again."""
        self.last_access_time = now
        if priority:
            self.priority = max(self.priority, priority)

    def adopt(self, edge: Edge, child: "Node") -> None:
        if self.children is NO_CHILDREN:
            self.children = {}
        self.children[edge] = child

    def disown(self, edge: Edge) -> None:
        del self.children[edge]
        self.recent = None
        if not self.children:
            self.children = NO_CHILDREN


# Shared by all leaves, and never written to: a dict of its own would cost each of them 64 bytes.
NO_CHILDREN: dict[Edge, Node] = {}

# Shared by all nodes that a tier does not hold, and never written to.
NO_SLOTS = bytearray()


class Account:
    """What the namespaces of one tenant, or of all tenants without a share of their own, hold together.

    `device_bytes`, `host_bytes` and `locked_bytes` (of the device's) count slots in packed bytes. What is above
    `floor_bytes` may go to others; what is above `fair_bytes`, its part by `weight`, goes first.
    """

    __slots__ = (
        "device_bytes",
        "fair_bytes",
        "floor_bytes",
        "host_bytes",
        "host_fair_bytes",
        "host_floor_bytes",
        "index",
        "locked_bytes",
        "tenant",
        "weight",
    )

    def __init__(self, tenant: str, index: int) -> None:
        self.tenant = tenant
        self.index = index
        self.weight = 1.0
        self.device_bytes = self.host_bytes = self.locked_bytes = 0
        self.floor_bytes = self.host_floor_bytes = 0
        self.fair_bytes = self.host_fair_bytes = 0


class Space:
    """One namespace of the tree: its roots, one at the top and one below every barrier node where it continues.

    It counts for `tenant` ("" where it is public) in `account`, which may be one of several tenants together.
    `device_bytes` and `host_bytes` count the slots that its nodes hold in each tier, in packed bytes. `num_changes`
    grows with each change of them.
    """

    __slots__ = ("account", "device_bytes", "host_bytes", "namespace", "num_changes", "roots", "tenant")

    def __init__(self, namespace: Namespace, tenant: str, account: Account, num_changes: int = 0) -> None:
        self.namespace = namespace
        self.tenant = tenant
        self.account = account
        self.roots: set[Node] = set()
        self.device_bytes = 0
        self.host_bytes = 0
        self.num_changes = num_changes

    def count_on_device(self, size: int) -> None:
        """The device holds `size` bytes more of it; less, if that is negative."""
        self.device_bytes += size
        self.account.device_bytes += size
        self.num_changes += 1

    def count_on_host(self, size: int) -> None:
        """The host holds `size` bytes more of it; less, if that is negative."""
        self.host_bytes += size
        self.account.host_bytes += size
        self.num_changes += 1


class Roots:
    """Every root of a tree. Invariant: a namespace is listed as long as it has one, and each is found from above it."""

    def __init__(self) -> None:
        self.spaces: dict[Namespace, Space] = {}
        self.tops: dict[Namespace, Node] = {}  # the roots that hang below no barrier
        self._num_changes = 1  # more than any namespace had that has gone

    def num_changes(self, namespaces: Iterable[Namespace]) -> tuple[int, ...]:
        """Return what differs whenever these namespaces hold something else than before; 0 stands for nothing."""
        return tuple([0 if (space := self.spaces.get(each)) is None else space.num_changes for each in namespaces])

    def below(self, barrier: Node | None, namespace: Namespace) -> Node | None:
        return self.tops.get(namespace) if barrier is None else barrier.children.get(namespace)

    def plant(self, barrier: Node | None, namespace: Namespace, tenant: str, account: Account) -> Node:
        """Make the root of `namespace` below `barrier`, or at the top. There must be none yet."""
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = Space(namespace, tenant, account, self._num_changes)
        root = Node(bytearray(), NO_SLOTS, barrier, space, 0.0)
        space.roots.add(root)
        if barrier is None:
            self.tops[namespace] = root
        else:
            barrier.adopt(namespace, root)
        return root

    def uproot(self, root: Node) -> None:
        """Cut a root off, with all that hangs below it. It still knows its barrier."""
        space = root.space
        if space is None or root not in space.roots:
            return
        if root.parent is None:
            del self.tops[space.namespace]
        elif root.parent.children.get(space.namespace) is root:
            root.parent.disown(space.namespace)
        space.roots.remove(root)
        if not space.roots:
            del self.spaces[space.namespace]
            self._num_changes = max(self._num_changes, space.num_changes + 1)

    def of(self, namespace: Namespace) -> list[Node]:
        space = self.spaces.get(namespace)
        return [] if space is None else list(space.roots)
