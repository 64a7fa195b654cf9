"""The slots of the host tier, and which copies are to be made on it and when. Configuration and room, no copies."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hicache.keys import TOKEN_BYTES, Int32Array
from hicache.radix.node import Account, Node
from hicache.radix.removal import Removal
from hicache.slots import SlotAllocator


class WritePolicy(Protocol):
    """Which nodes get their copy on the host while they are in use, before they are among the coldest."""

    name: str

    def wants(self, node: Node) -> bool:
        """Asked when a lease on the node ends."""
        ...


class WriteBack:
    """None: what is among the coldest is mirrored, ahead of its eviction."""

    name = "write_back"

    def wants(self, node: Node) -> bool:
        return False


class WriteThrough:
    """Each of them."""

    name = "write_through"

    def wants(self, node: Node) -> bool:
        return True


class WriteThroughSelective:
    """Those that were hit `hit_threshold` times."""

    name = "write_through_selective"

    def __init__(self, hit_threshold: int = 2) -> None:
        self.hit_threshold = hit_threshold

    def wants(self, node: Node) -> bool:
        return node.hit_count >= self.hit_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRules:
    """When what is copied.

    Mirroring ahead starts when the share of device slots that can be handed out without loss falls below
    `low_watermark`, and goes on to `high_watermark`. A copy that takes longer than `copy_timeout_s` is given up; after
    one that failed no mirror is started for `retry_s`.
    """

    low_watermark: float = 0.1
    high_watermark: float = 0.2
    max_flying_tokens: int = 16_384  # on their way to the host at a time
    max_copy_tokens: int = 1_024  # of one copy
    copy_timeout_s: float = 10.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low_watermark <= self.high_watermark <= 1:
            raise ValueError(
                "the watermarks must be 0 <= low_watermark <= high_watermark <= 1, "
                f"got {self.low_watermark:g} and {self.high_watermark:g}"
            )
        for name in ("max_flying_tokens", "max_copy_tokens", "copy_timeout_s", "retry_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")


class HostSlots:
    """Which host slots are free."""

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.num_slots = num_slots
        self._slots = SlotAllocator(num_slots, page_size)

    @property
    def num_free(self) -> int:
        return self._slots.num_free

    def allocate(self, num_slots: int, removal: Removal, claimant: Account) -> Int32Array | None:
        """Return `num_slots` slots, evicting what is missing from the host; None if there are too few."""
        if num_slots > self.num_slots:
            return None  # whatever is evicted for it
        self._make_room(num_slots, removal, claimant)
        return self._slots.allocate(num_slots)

    def allocate_most(self, num_slots: int, unit: int, removal: Removal, claimant: Account) -> Int32Array | None:
        """Return as many of `num_slots` slots as can be had, a multiple of `unit`; None if that is 0."""
        self._make_room(min(num_slots, self.num_slots), removal, claimant)
        most = min(num_slots, self.num_free) // unit * unit
        return self._slots.allocate(most) if most else None

    def _make_room(self, num_slots: int, removal: Removal, claimant: Account) -> None:
        missing = num_slots - self.num_free
        if missing > 0:
            removal.evict_on_host(missing * TOKEN_BYTES, claimant)

    def free(self, slots: Int32Array) -> None:
        self._slots.free(slots)

    def free_packed(self, value: bytearray) -> None:
        self._slots.free(np.frombuffer(value, np.int32))

    def free_slots(self) -> Int32Array:
        return self._slots.free_slots()

    def check(self) -> None:
        self._slots.check()
