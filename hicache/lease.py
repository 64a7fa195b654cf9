"""A lease: one sequence's hold on its prefix in the device's tree, and on the slots it computes into."""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from hicache.copies.transfer import LayerGate
from hicache.device_slots import DeviceSlots
from hicache.errors import LeaseError
from hicache.keys import TOKEN_BYTES, Int32Array, Namespace, PrefixKey
from hicache.radix.audit import Holding
from hicache.radix.node import Node
from hicache.radix.shares import Owner
from hicache.radix.tree import RadixTree

_SLOT_DTYPE = np.dtype(np.int32)
_frombuffer = np.frombuffer
_MIN_ROOM = 64  # slots; a lease's array starts with room for this many more


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading tokens found, by the tier where they lie."""

    device: int
    host: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.storage


@dataclass(frozen=True, slots=True)
class Ground:
    """What leases of one cache stand on."""

    tree: RadixTree
    slots: DeviceSlots
    open: "set[Lease]"  # those not released


class Lease:
    """One sequence's hold on its prefix and on the slots it computes into. A context manager.

        slots    [ matched | committed ...    | computed or yet to be | spare of the last page )
        owner      tree      tree, or private   private                 private
                             where it was a
                             duplicate

    `slots` never changes for a token that has one: what another lease committed first is a duplicate, and this lease
    goes on with its own copy until its release.
    """

    __slots__ = (
        "_capacity",
        "_depth",
        "_duplicates",
        "_expelled",
        "_ground",
        "_hit_tokens",
        "_namespaces",
        "_node",
        "_num_tokens",
        "_owner",
        "_priority",
        "_slot_ids",
    )

    def __init__(
        self,
        ground: Ground,
        namespaces: tuple[Namespace, ...],
        node: Node | None,
        value: bytes,
        priority: int,
        tenant: str,
    ) -> None:
        """Made by `PrefixCache.acquire`, which has locked `node`; `value` holds the slots of the path down to it."""
        self._ground: Ground | None = ground  # None: released
        self._owner = Owner(namespaces[-1], tenant)
        self._namespaces = namespaces
        self._priority = priority
        self._node = node
        self._slot_ids = _frombuffer(value, _SLOT_DTYPE)
        # All in tokens, and equal to begin with: the hit, what has a slot, the slots held (whole pages; the array may
        # be longer), and what the locked path covers (whole pages).
        self._hit_tokens = self._num_tokens = self._capacity = self._depth = len(value) // TOKEN_BYTES
        self._duplicates: list[tuple[int, int]] = []  # token ranges above the depth that are private all the same
        self._expelled = False
        ground.open.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    @property
    def hit(self) -> Hit:
        """What was found when the lease was acquired."""
        return Hit(self._hit_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that have a slot."""
        return self._num_tokens

    @property
    def num_slots(self) -> int:
        """Slots held, those of a load back under way and the spare ones of a page included."""
        return self._capacity

    @property
    def num_private_slots(self) -> int:
        """Slots held that the cache doesn't have; after its namespace was dropped, all."""
        return self._capacity if self._expelled else sum(last - first for first, last in self._private())

    @property
    def loading(self) -> bool:
        """Whether a load back is under way. Until it ends, nothing may be reserved or committed."""
        return False

    @property
    def gate(self) -> LayerGate | None:
        """Where a forward pass can follow the load back that is under way; None: it has to wait until that ends."""
        return None

    def follow(self) -> None:
        """Count what is being loaded as if it were there, for a forward pass that waits at `gate`.

        Slots can be reserved behind it. Nothing can be committed before `loading` ends; if `num_tokens` is smaller
        then, the load failed, and what was computed behind it is worth nothing.
        """
        raise LeaseError("there is no gate to follow a load through")

    def load_back(self, *, now: float) -> bool:
        """Begin to load what lower tiers have behind the hit, as far as it is worth it and there are slots.

        False: nothing is loaded, and the lease is ready.
        """
        return False

    @property
    def slots(self) -> Int32Array:
        """int32[num_tokens], read-only: the slot of every token held so far, in order."""
        view = self._slot_ids[: self._num_tokens]
        view.flags.writeable = False
        return view

    def reserve(self, num_tokens: int, *, now: float) -> bool:
        """Append slots for the next `num_tokens` tokens, evicting as needed. False: not enough, and nothing changed."""
        ground = self._held()
        if num_tokens < 0:
            raise LeaseError(f"num_tokens must not be negative, got {num_tokens}")
        missing = self._num_tokens + num_tokens - self._capacity
        if missing > 0:
            last = int(self._slot_ids[self._capacity - 1]) if self._capacity else None
            slots = ground.slots.allocate(missing, last, self._owner.tenant)
            if slots is None:
                return False
            self._append(slots)
        self._num_tokens += num_tokens
        return True

    def commit(self, key: PrefixKey, *, now: float) -> None:
        """Publish the whole pages of `key`, whose KV is computed and lies in slots[:len(key)].

        `key` continues what was matched or committed before; only what is new in it is looked at. After the namespace
        was dropped this changes nothing.
        """
        ground = self._held()
        if key.namespaces != self._namespaces:
            raise LeaseError("the key belongs to other namespaces than the lease")
        if len(key) > self._num_tokens:
            raise LeaseError(f"the key has {len(key)} tokens, the lease has slots for {self._num_tokens}")
        if self._expelled:
            return
        page_size = ground.slots.page_size
        depth = len(key) // page_size * page_size
        if depth <= self._depth:
            return
        value = self._slot_ids[self._depth : depth].view(np.uint8).data
        begin = self._depth * TOKEN_BYTES
        parts = key.parts(page_size)
        insertion = ground.tree.insert(self._node, begin, parts, value, now, self._priority, self._owner)
        self._node = insertion.node
        self._depth = depth
        for first, last in insertion.duplicates:
            self._duplicates.append((first // TOKEN_BYTES, last // TOKEN_BYTES))

    def release(self) -> None:
        """Let go of the prefix and free what is private. Releasing again is harmless."""
        ground = self._ground
        if ground is None:
            return
        if self._node is not None:
            ground.slots.unlock(self._node, self._expelled)
        for first, last in self._private():
            ground.slots.free(self._slot_ids[first:last])
        ground.open.discard(self)
        self._ground = None
        self._node = None
        self._num_tokens = self._capacity = self._depth = 0
        self._duplicates = []

    def _held(self) -> Ground:
        if self._ground is None:
            raise LeaseError("the lease is released")
        return self._ground

    def _private(self) -> list[tuple[int, int]]:
        """Ranges of held slots that no node refers to."""
        return [*self._duplicates, (self._depth, self._capacity)]

    def _append(self, slots: Int32Array) -> None:
        """Put new slots behind those held. A view handed out earlier keeps seeing what it saw."""
        end = self._capacity + len(slots)
        if end > len(self._slot_ids):
            grown = np.empty(end + max(_MIN_ROOM, end // 2), dtype=np.int32)
            grown[: self._capacity] = self._slot_ids[: self._capacity]
            self._slot_ids = grown
        self._slot_ids[self._capacity : end] = slots
        self._capacity = end

    @property
    def end(self) -> Node | None:
        """The node in which it ends, if it found or published anything."""
        return self._node

    def expel(self, namespace: Namespace) -> None:
        """A namespace is dropped: if it is one of the key's, nothing is published any more."""
        if namespace in self._namespaces:
            self._expelled = True

    def holding(self) -> Holding:
        held = self._slot_ids[: self._capacity]
        private = [held[first:last] for first, last in self._private()]
        return Holding(self._node, self._depth, held, np.concatenate(private), self._duplicates, self._expelled)
