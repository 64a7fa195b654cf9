"""Copies under way between device and host, and what becomes of the nodes when they end. Knows no clock and no thread.

mirror    started  the nodes are flying; the copy holds their host slots
          done     settled, or spare where they are used meanwhile
          failed   dirty again; no mirror is started for a while
          stalled  dirty again at once; the host slots stay with ghosts until the copy has ended after all
load      started  the nodes stay cold, and hold; the lease owns the device slots
          done     the lease publishes its slots, as if it had computed them
          failed   the lease gives the slots back and computes instead
          stalled, or the lease is released: the lease goes on; the device slots stay here until the copy has ended
          While one is stalled no other is started: copies that never end would take slot after slot.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from hicache.copies.transfer import Copy, Direction, Ticket, TicketState, Transfer
from hicache.host import HostSlots, MirrorRules
from hicache.keys import TOKEN_BYTES, Int32Array
from hicache.radix.node import Node
from hicache.radix.removal import Removal
from hicache.radix.tree import RadixTree
from hicache.stats import Durations

_SHORTEST_MIRROR = 64  # tokens; a leaf is not cut into shorter pieces for it
_LONGEST_QUEUE = 10  # time-outs that a mirror may spend in a queue that moves on
_MAX_WANTED = 100_000  # nodes that wait for their mirror because somebody wanted it


class Mirror:
    """A copy from device to host. Holds the host slots of its nodes."""

    loads = False

    def __init__(self, nodes: list[Node], started_at: float) -> None:
        self.nodes = nodes
        self.num_bytes = sum(len(node.value) for node in nodes)
        self.started_at = started_at
        self.ticket: Ticket


class LoadingLease(Protocol):
    """Who waits for a load."""

    def loaded(self, now: float) -> None: ...

    def not_loaded(self) -> None: ...


class LoadBack:
    """A copy from host to device. Holds the host slots of its nodes; the device slots are its lease's, or its own."""

    loads = True

    def __init__(self, nodes: list[Node], lease: LoadingLease, device_slots: Int32Array, started_at: float) -> None:
        self.nodes = nodes
        self.lease: LoadingLease | None = lease
        self.device_slots = device_slots
        self.started_at = started_at
        self.ticket: Ticket


class Flights:
    """Starts copies, and follows them to their end. Invariant: what a copy that is not known to have ended writes to is
    owned by nobody else.
    """

    def __init__(
        self,
        tree: RadixTree,
        removal: Removal,
        host: HostSlots,
        transfer: Transfer,
        rules: MirrorRules,
        free_device: Callable[[Int32Array], None],
        on_mirrored: Callable[[Sequence[Node]], None],
    ) -> None:
        """`on_mirrored` is told of nodes that have their copy on the host now."""
        self._tree = tree
        self._queues = tree.queues
        self._removal = removal
        self._host = host
        self._transfer = transfer
        self._rules = rules
        self._free_device = free_device
        self._on_mirrored = on_mirrored
        self._mirrors: list[Mirror] = []
        self._loads: list[LoadBack] = []
        self._stalled: list[Mirror | LoadBack] = []
        self._wanted: OrderedDict[Node, None] = OrderedDict()
        self._quiet_until = self._mirror_ended_at = float("-inf")
        self.flying_bytes = 0  # of mirrors that are expected to end
        self.mirrored_tokens = self.loaded_tokens = 0
        self.mirror_failures = self.load_failures = 0
        self.mirror_durations, self.load_durations = Durations(), Durations()
        self.stalls = 0
        self.on_load_measured: Callable[[int, float], None] = lambda _tokens, _seconds: None

    @property
    def pending(self) -> int:
        """Copies that are not known to have ended; and one for those wanted that have not begun."""
        return len(self._mirrors) + len(self._loads) + len(self._stalled) + bool(self._wanted)

    @property
    def ghosts(self) -> list[Node]:
        """Nodes outside of the tree whose host slots a copy may still touch."""
        flights = (*self._mirrors, *self._loads, *self._stalled)
        return [node for flight in flights for node in flight.nodes if node.space is None]

    @property
    def quarantine(self) -> list[Int32Array]:
        """Device slots that nobody owns, and a copy may still write to."""
        flights = [flight for flight in (*self._loads, *self._stalled) if isinstance(flight, LoadBack)]
        return [flight.device_slots for flight in flights if flight.lease is None]

    @property
    def num_returning_slots(self) -> int:
        """Device slots of loads that nobody waits for any more, and that are expected to end."""
        return sum(len(load.device_slots) for load in self._loads if load.lease is None)

    @property
    def loads_stall(self) -> bool:
        """Whether a load was given up that has not ended: another one might lose its device slots to it, too."""
        return any(isinstance(flight, LoadBack) for flight in self._stalled)

    # Mirrors

    def want(self, node: Node) -> None:
        """Mirror a node as soon as there is room for it, wherever it stands in the order of eviction."""
        if _is_dirty(node) and len(self._wanted) < _MAX_WANTED:
            self._wanted.setdefault(node)

    def mirror_wanted(self, now: float) -> None:
        """Start the mirrors that somebody wanted."""
        while self._wanted and self._room() > 0 and now >= self._quiet_until:
            batch: list[Node] = []
            size = 0
            while self._wanted and size < self._max_bytes():
                node = next(iter(self._wanted))
                if len(node.value) > self._max_bytes() and _is_dirty(node):
                    node = self._tree.split(node, self._max_bytes())  # what is below has its turn next
                else:
                    del self._wanted[node]
                if not _is_dirty(node):
                    continue
                if not self._take_off(node, batch):
                    self._wanted.clear()  # the host is full of what is needed there
                    break
                size += len(node.value)
            if not batch:
                return
            self._start_mirror(batch, now)

    def mirror_ahead(self, wanted: int, num_free: int, now: float) -> bool:
        """Settle the coldest nodes until `wanted` bytes of device slots are free, settled, or on their way to be.

        Returns whether it goes on when copies that are under way have ended.
        """
        while now >= self._quiet_until:
            missing = wanted - num_free - self._queues.settled_bytes - self.flying_bytes
            if missing <= 0:
                return False
            if not self._mirror_coldest(min(missing, self._max_bytes()), now):
                return self._room() <= 0
        return True

    def _mirror_coldest(self, size: int, now: float) -> bool:
        """Settle or start to mirror at least `size` bytes; False if there is nothing more to be done now."""
        batch: list[Node] = []
        settled = False
        while size > 0:
            node = self._queues.next_to_mirror()
            if node is None:
                break
            if node.mirrored:
                size -= len(node.value)
                settled = True
                self._queues.settle(node)
                continue
            if self._room() <= 0:
                break
            most = min(
                self._max_bytes(), max(self._whole_pages(size), self._whole_pages(_SHORTEST_MIRROR * TOKEN_BYTES))
            )
            if len(node.value) > most:
                self._tree.split(node, len(node.value) - most)
            if not self._take_off(node, batch):
                break
            size -= len(node.value)
        if batch:
            self._start_mirror(batch, now)
        return settled or bool(batch)

    def _take_off(self, node: Node, batch: list[Node]) -> bool:
        """Give a dirty node its host slots and enter it in a batch. False: there are too few."""
        space = node.space
        assert space is not None
        size = len(node.value)
        slots = self._host.allocate(size // TOKEN_BYTES, self._removal, space.account)
        if slots is None:
            return False
        if len(node.value) != size or not _is_dirty(node):
            self._host.free(slots)  # making room has merged it with what lies above it
            return True
        node.host_value = bytearray(slots.tobytes())
        node.mirroring = True
        space.count_on_host(size)
        self._queues.replace(node)
        batch.append(node)
        return True

    def _start_mirror(self, nodes: list[Node], now: float) -> None:
        mirror = Mirror(nodes, now)
        for node in nodes:
            self._removal.hold(node, mirror)
        self.flying_bytes += mirror.num_bytes
        self._mirrors.append(mirror)
        mirror.ticket = self._transfer.submit(
            Copy(Direction.MIRROR, _slots(nodes, "value"), _slots(nodes, "host_value"))
        )
        if not mirror.ticket.pending:
            self._poll_mirrors(now)

    def _room(self) -> int:
        stalled = sum(mirror.num_bytes for mirror in self._stalled if isinstance(mirror, Mirror))
        return self._rules.max_flying_tokens * TOKEN_BYTES - self.flying_bytes - stalled

    def _whole_pages(self, size: int) -> int:
        page_bytes = self._tree.page_bytes
        return -(-size // page_bytes) * page_bytes

    def _max_bytes(self) -> int:
        page_bytes = self._tree.page_bytes
        # One copy must not drive out all that a small host has.
        most = min(self._rules.max_copy_tokens, self._host.num_slots // 2) * TOKEN_BYTES
        return max(page_bytes, most // page_bytes * page_bytes)

    # Loads

    def load(self, nodes: list[Node], lease: LoadingLease, device_slots: Int32Array, now: float) -> LoadBack:
        """Copy a chain of nodes, top down, into the lease's device slots."""
        load = LoadBack(list(nodes), lease, device_slots, now)
        host_slots = _slots(nodes, "host_value")
        for node in nodes:
            self._removal.hold(node, load)
        self._loads.append(load)
        load.ticket = self._transfer.submit(Copy(Direction.LOAD, device_slots, host_slots))
        return load

    def abandon(self, load: LoadBack) -> None:
        """Its lease ends: the device slots are the copy's until it has ended."""
        load.lease = None
        load.ticket.cancel()

    # Ends

    def poll(self, now: float) -> None:
        """Take note of copies that have ended, and give up those that take too long."""
        if self._mirrors:
            self._poll_mirrors(now)
        if self._loads:
            self._poll_loads(now)
        if self._stalled:
            for flight in [flight for flight in self._stalled if not flight.ticket.pending]:
                self._stalled.remove(flight)
                self._clear(flight)

    def _poll_mirrors(self, now: float) -> None:
        for mirror in list(self._mirrors):
            if not mirror.ticket.pending:
                self._mirrors.remove(mirror)
                self.flying_bytes -= mirror.num_bytes
                self._mirror_ended_at = now
                self._mirror_ended(mirror, now)
            elif self._is_stalled(mirror, now):
                self._mirrors.remove(mirror)
                self.flying_bytes -= mirror.num_bytes
                self._stall(mirror)
                self._quiet_until = now + self._rules.retry_s
                for node in list(mirror.nodes):
                    if node.space is not None:
                        self._removal.forget_on_host(node)

    def _is_stalled(self, mirror: Mirror, now: float) -> bool:
        """Whether a mirror takes too long. Time in which others have ended it may have spent behind them in a queue."""
        patience_s = self._rules.copy_timeout_s
        waits_since = max(mirror.started_at, self._mirror_ended_at)
        return now - waits_since > patience_s or now - mirror.started_at > _LONGEST_QUEUE * patience_s

    def _poll_loads(self, now: float) -> None:
        for load in list(self._loads):
            if not load.ticket.pending:
                self._loads.remove(load)
                self._load_ended(load, now)
            elif now - load.started_at > self._rules.copy_timeout_s:
                self._loads.remove(load)
                self._stall(load)
                self._let_go(load)
                load.nodes = []
                lease, load.lease = load.lease, None
                if lease is not None:
                    lease.not_loaded()

    def _stall(self, flight: Mirror | LoadBack) -> None:
        flight.ticket.cancel()
        self._stalled.append(flight)
        self.stalls += 1

    def _mirror_ended(self, mirror: Mirror, now: float) -> None:
        done = mirror.ticket.state is TicketState.DONE
        if not done:
            self.mirror_failures += 1
            self._quiet_until = now + self._rules.retry_s
        # Children first: a node settles only when what is below it has.
        nodes = sorted(mirror.nodes, key=lambda node: node.depth, reverse=True)
        self._let_go(mirror)
        nodes = [node for node in nodes if node.space is not None]
        for node in nodes:
            if done:
                self._mirrored(node)
            else:
                self._removal.forget_on_host(node)
        if done:
            self.mirror_durations.add(mirror.ticket.seconds)
            self._on_mirrored(nodes)
        for node in nodes:
            self._tree.merge_with_only_child(node)

    def _mirrored(self, node: Node) -> None:
        self.mirrored_tokens += node.num_tokens
        node.mirroring = False
        self._queues.replace(node)
        self._tree.watcher.stored(node, node.depth - len(node.key), "host")
        if not node.lock_ref and not node.blockers:
            self._queues.settle(node)

    def _load_ended(self, load: LoadBack, now: float) -> None:
        ticket = load.ticket
        done = ticket.state is TicketState.DONE
        self._let_go(load)
        lease, load.lease = load.lease, None
        if done:
            self.loaded_tokens += len(ticket.copy)
            self.load_durations.add(ticket.seconds)
            self.on_load_measured(len(ticket.copy), ticket.seconds)
        elif lease is not None:
            self.load_failures += 1
        if lease is None:
            self._free_device(load.device_slots)
        elif done:
            lease.loaded(now)
        else:
            lease.not_loaded()
            self._free_device(load.device_slots)

    def _clear(self, flight: Mirror | LoadBack) -> None:
        """A copy has ended that nobody waits for any more."""
        self._let_go(flight)
        if isinstance(flight, LoadBack):
            self._free_device(flight.device_slots)

    def _let_go(self, flight: Mirror | LoadBack) -> None:
        for node in flight.nodes:
            self._removal.let_go(node, flight)


def _is_dirty(node: Node) -> bool:
    """Whether a node is in the tree, and on the device alone."""
    return node.space is not None and node.parent is not None and bool(node.value) and not node.host_value


def _slots(nodes: Sequence[Node], tier: str) -> Int32Array:
    return np.frombuffer(b"".join(getattr(node, tier) for node in nodes), np.int32)
