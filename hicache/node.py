"""The nodes of the radix tree, and the roots among them by namespace. State that the tree owns and keeps consistent."""

from hicache.keys import TOKEN_BYTES, Namespace

# What a child hangs by: the packed first page of its key, or the namespace that begins below its parent.
Edge = bytes | Namespace


class Node:
    """An edge with a run of tokens, and the slots that hold their KV.

    `key` and `value` are growable buffers of packed int32 (tokens and slot ids) of equal length; both are empty exactly
    in roots, which separate namespaces and hold nothing themselves.

    `depth` is the length in bytes of the whole path from the top down to the end of this node.

    `lock_ref` counts the leases that end here plus the children whose own count is not 0, so that taking or dropping a
    lock climbs only as far as a count changes between 0 and 1. Everything above a locked node is locked.

    `last_access_time` and `priority` are those of the requests that ended at this node, not of those that passed
    through: whoever uses a child uses its parent, and a child that is evicted passes both on. `hit_count` counts the
    requests that matched through the whole node. `stored_time` is when its newest token came.

    `space` is None once the namespace was dropped: the node is out of reach and lives on for the leases that hold it.
    `ticket` is 0, or names the node's entry among the victims.
    """

    __slots__ = (
        "children",
        "depth",
        "hit_count",
        "key",
        "last_access_time",
        "lock_ref",
        "parent",
        "priority",
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
        self.parent = parent
        self.space = space
        self.depth: int = len(key) if parent is None else parent.depth + len(key)
        self.children: dict[Edge, Node] = NO_CHILDREN
        self.lock_ref = 0
        self.hit_count = 0
        self.priority = priority
        self.stored_time = now
        self.last_access_time = now
        self.ticket = 0

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @property
    def is_root(self) -> bool:
        return not self.key

    def adopt(self, edge: Edge, child: "Node") -> None:
        if self.children is NO_CHILDREN:
            self.children = {}
        self.children[edge] = child

    def disown(self, edge: Edge) -> None:
        del self.children[edge]
        if not self.children:
            self.children = NO_CHILDREN


# Shared by all leaves, and never written to: a dict of its own would cost each of them 64 bytes.
NO_CHILDREN: dict[Edge, Node] = {}


class Space:
    """One namespace of the tree: its roots, one at the top and one below every barrier node where it continues."""

    __slots__ = ("namespace", "roots")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.roots: set[Node] = set()


class Roots:
    """Every root of a tree. Invariant: a namespace is listed as long as it has one, and each is found from above it."""

    def __init__(self) -> None:
        self.spaces: dict[Namespace, Space] = {}
        self.tops: dict[Namespace, Node] = {}  # the roots that hang below no barrier

    def below(self, barrier: Node | None, namespace: Namespace) -> Node | None:
        return self.tops.get(namespace) if barrier is None else barrier.children.get(namespace)

    def plant(self, barrier: Node | None, namespace: Namespace) -> Node:
        """Make the root of `namespace` below `barrier`, or at the top. There must be none yet."""
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = Space(namespace)
        root = Node(bytearray(), bytearray(), barrier, space, 0.0)
        space.roots.add(root)
        if barrier is None:
            self.tops[namespace] = root
        else:
            barrier.adopt(namespace, root)
        return root

    def uproot(self, root: Node) -> None:
        """Cut a root off, with all that hangs below it. It still knows its barrier."""
        space = root.space
        if space is None:
            return
        if root.parent is None:
            del self.tops[space.namespace]
        else:
            root.parent.disown(space.namespace)
        space.roots.remove(root)
        if not space.roots:
            del self.spaces[space.namespace]

    def of(self, namespace: Namespace) -> list[Node]:
        space = self.spaces.get(namespace)
        return [] if space is None else list(space.roots)
