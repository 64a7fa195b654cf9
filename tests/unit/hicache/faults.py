"""A cache with something of everything, and every way to break it, each a function of the same shape."""

import numpy as np

from hicache.cache import Lease, PrefixCache
from hicache.keys import PrefixKey, Segment
from hicache.radix.node import NO_CHILDREN, NO_SLOTS, Account, Node, Space
from hicache.radix.policy import RankedQueue
from hicache.radix.shares import Share
from hicache.slots import SlotAllocator
from tests.unit.hicache.support import key, namespace, serve, settle, start

SHARED = list(range(8))


class Host:
    """Host slots, of which the test takes some by hand."""

    num_slots = 64

    def __init__(self) -> None:
        self.slots = SlotAllocator(64, 2)

    def take(self, num_bytes: int) -> bytearray:
        slots = self.slots.allocate(num_bytes // 4)
        assert slots is not None
        return bytearray(slots.tobytes())

    def free_packed(self, value: bytearray) -> None:
        self.slots.free(np.frombuffer(value, np.int32))


class Copying:
    """Who is at work on the host slots of some nodes."""

    loads = False

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)


class Setting:
    """A cache with something of everything, and names for its pieces.

    tenant     root ── stem (8) ─┬─ cold (4)
                                 └─ held (4)      where `lease` ends, with private slots behind
    public     root ── barrier (4) ── root of guest ── guest (4)
    """

    def __init__(self) -> None:
        self.host = Host()
        self.cache = PrefixCache(64, page_size=2, shares={"shareholder": Share(floor=0.25)}, host=self.host)
        serve(self.cache, key([*SHARED, 20, 21, 22, 23]), 1.0)
        public = PrefixKey((Segment(namespace("public"), [1, 2, 3, 4]), Segment(namespace("guest"), [5, 6, 7, 8])))
        serve(self.cache, public, 2.0)
        self.lease: Lease = start(self.cache, key([*SHARED, 30, 31, 32, 33]), 3.0)
        assert self.lease.reserve(3, now=3.0)
        self.tree = self.cache._tree
        self.top = self.tree.roots.tops[namespace()]
        (self.stem,) = self.top.children.values()
        self.cold, self.held = self.stem.children.values()
        (self.barrier,) = self.tree.roots.tops[namespace("public")].children.values()
        (self.guest_root,) = self.barrier.children.values()
        (self.guest,) = self.guest_root.children.values()
        self.cache.check()

    def copy(self, node: Node) -> None:
        """Give a node its slots on the host, as if it were mirrored."""
        assert node.space is not None
        node.host_value = self.host.take(len(node.key))
        for owner in (node.space, node.space.account):
            owner.host_bytes += len(node.key)
        self.tree.queues.replace(node)

    def settle(self, node: Node) -> None:
        self.copy(node)
        self.tree.queues.settle(node)
        self.cache.check()


def change_a_token(setting: Setting) -> None:
    setting.cold.key[0] ^= 1


def shorten_a_key(setting: Setting) -> None:
    del setting.cold.key[-8:]


def shorten_a_node_by_half_a_page(setting: Setting) -> None:
    del setting.cold.key[-4:], setting.cold.value[-4:]


def swap_two_slots(setting: Setting) -> None:
    setting.held.value[:4], setting.held.value[4:8] = setting.held.value[4:8], setting.held.value[:4]


def own_a_slot_twice(setting: Setting) -> None:
    setting.cold.value[:4] = setting.guest.value[:4]


def lose_the_slots_of_a_lease(setting: Setting) -> None:
    setting.lease._capacity -= 2


def free_what_is_cached(setting: Setting) -> None:
    setting.cache._slots.free(setting.lease.slots[:2])


def take_and_keep(setting: Setting) -> None:
    setting.cache._slots._slots.allocate(2)


def lock_once_too_often(setting: Setting) -> None:
    setting.stem.lock_ref += 1


def unlock_once_too_often(setting: Setting) -> None:
    setting.stem.lock_ref -= 1


def lock_for_nobody(setting: Setting) -> None:
    setting.tree.lock(setting.guest)


def forget_a_lease(setting: Setting) -> None:
    setting.cache._leases.clear()


def move_a_lease_up(setting: Setting) -> None:
    setting.lease._node = setting.stem


def move_a_lease_aside(setting: Setting) -> None:
    setting.lease._depth -= 2


def give_a_node_another_parent(setting: Setting) -> None:
    setting.cold.parent = setting.top


def empty_a_node(setting: Setting) -> None:
    setting.cold.key.clear()
    setting.cold.value.clear()


def leave_an_empty_root(setting: Setting) -> None:
    common = setting.tree.queues.accounts[0]
    space = setting.tree.roots.spaces[namespace("idle")] = Space(namespace("idle"), "", common)
    root = setting.tree.roots.tops[namespace("idle")] = Node(bytearray(), bytearray(), None, space, 0.0)
    space.roots.add(root)


def mistake_the_depth(setting: Setting) -> None:
    setting.cold.depth += 8


def hang_a_child_by_the_wrong_edge(setting: Setting) -> None:
    setting.stem.children[b"\0" * 8] = setting.stem.children.pop(bytes(setting.cold.key[:8]))


def move_a_node_to_another_namespace(setting: Setting) -> None:
    setting.cold.space = setting.guest.space


def forget_a_namespace(setting: Setting) -> None:
    del setting.tree.roots.spaces[namespace("guest")]


def forget_a_root(setting: Setting) -> None:
    setting.tree.roots.spaces[namespace("guest")].roots.clear()


def rename_a_namespace(setting: Setting) -> None:
    setting.tree.roots.spaces[namespace("other")] = setting.tree.roots.spaces.pop(namespace("guest"))


def rename_a_top(setting: Setting) -> None:
    setting.tree.roots.tops[namespace("other")] = setting.tree.roots.tops.pop(namespace())


def hang_a_top_below_another(setting: Setting) -> None:
    setting.tree.roots.tops[namespace("guest")] = setting.guest_root
    setting.barrier.disown(namespace("guest"))


def drop_without_telling_the_lease(setting: Setting) -> None:
    setting.cache._removal.drop(namespace())
    settle(setting.cache)


def keep_a_dropped_node(setting: Setting) -> None:
    setting.cache.drop(namespace())
    settle(setting.cache)
    setting.held.lock_ref = 0


def enter(setting: Setting, node: Node) -> None:
    node.queue = setting.tree.queues.dirty[0]
    node.queue.add(node)


def spare_a_victim(setting: Setting) -> None:
    setting.tree.queues.withdraw(setting.cold)


def make_an_inner_node_a_victim(setting: Setting) -> None:
    enter(setting, setting.barrier)


def make_a_locked_leaf_a_victim(setting: Setting) -> None:
    enter(setting, setting.held)


def touch_a_victim_unnoticed(setting: Setting) -> None:
    setting.cold.last_access_time = 99.0


def disturb_the_order_of_victims(setting: Setting) -> None:
    queue = setting.tree.queues.dirty[0]._queue
    assert isinstance(queue, RankedQueue)
    queue._heap.sort(reverse=True)


def miscount_victims(setting: Setting) -> None:
    setting.tree.queues.dirty[0]._live += 1


def call_a_namespace_somebody_elses(setting: Setting) -> None:
    setting.tree.roots.spaces[namespace("guest")].tenant = "shareholder"


def promise_all_there_is(setting: Setting) -> None:
    setting.tree.shares.accounts[1].floor_bytes = setting.tree.shares.floor_bytes = 64 * 4


def promise_more_than_the_host_has(setting: Setting) -> None:
    setting.tree.shares.accounts[1].host_floor_bytes = setting.tree.shares.host_floor_bytes = 65 * 4


def miscount_what_is_promised(setting: Setting) -> None:
    setting.tree.shares.floor_bytes += 8


def close_the_common_account(setting: Setting) -> None:
    setting.tree.shares.accounts.reverse()


def number_accounts_alike(setting: Setting) -> None:
    setting.tree.shares.accounts[1].index = 0


def keep_an_account_for_nobody(setting: Setting) -> None:
    shares = setting.tree.shares
    shares.accounts.append(Account("gone", 2))


def lose_a_configured_share(setting: Setting) -> None:
    shares = setting.tree.shares
    shares.close("shareholder")
    setting.tree.queues.account_closed(1)


def miscount_cached(setting: Setting) -> None:
    setting.tree.cached_bytes += 4


def miscount_locked(setting: Setting) -> None:
    setting.tree.locked_bytes -= 4


def miscount_nodes(setting: Setting) -> None:
    setting.tree.num_nodes += 1


def miscount_leaves(setting: Setting) -> None:
    setting.tree.num_leaves -= 1


def miscount_free(setting: Setting) -> None:
    setting.cache._slots._slots.num_free += 1


def write_to_the_children_of_all_leaves(setting: Setting) -> None:
    NO_CHILDREN[b"stray"] = setting.cold


def hang_a_node_in_two_places(setting: Setting) -> None:
    setting.top.children[b"\0" * 8] = setting.cold


def hang_a_node_below_itself(setting: Setting) -> None:
    setting.top.parent = setting.held


def keep_a_dict_for_no_children(setting: Setting) -> None:
    setting.cold.children = {}


def write_to_the_slots_that_nobody_has(setting: Setting) -> None:
    NO_SLOTS.extend(setting.cold.value)


# ------------------------------------------------------------------------------------------------- roots and namespaces


def list_a_root_that_is_gone(setting: Setting) -> None:
    space = setting.guest.space
    assert space is not None
    space.roots.add(Node(bytearray(), NO_SLOTS, None, space, 0.0))


def list_a_namespace_without_a_root(setting: Setting) -> None:
    common = setting.tree.queues.accounts[0]
    setting.tree.roots.spaces[namespace("idle")] = Space(namespace("idle"), "", common)


def list_a_root_with_another_namespace(setting: Setting) -> None:
    space = setting.guest_root.space
    assert space is not None
    setting.tree.roots.spaces[namespace()].roots.add(setting.guest_root)


def put_a_node_at_the_top(setting: Setting) -> None:
    setting.barrier.parent = None
    setting.tree.roots.tops[namespace("public")] = setting.barrier
    del setting.tree.roots.spaces[namespace("public")]


def lose_a_namespace(setting: Setting) -> None:
    setting.top.space = None


# ------------------------------------------------------------------------------------------------------------ dropping


def keep_what_is_dropped_in_reach(setting: Setting) -> None:
    setting.cache._removal._limbo.append(setting.guest_root)


def keep_a_place_for_nothing(setting: Setting) -> None:
    setting.tree.queues.fixed[setting.barrier] = None


def let_the_path_of_what_is_dropped_move(setting: Setting) -> None:
    setting.cache.drop(namespace("guest"))
    setting.tree.queues.fixed.clear()


def let_a_dropped_node_wait(setting: Setting) -> None:
    setting.cache.drop(namespace())
    settle(setting.cache)
    setting.held.queue = setting.tree.queues.dirty[0]


def drop_a_node_twice(setting: Setting) -> None:
    setting.cache.drop(namespace())
    setting.cache._removal._limbo.append(setting.cold)


# ------------------------------------------------------------------------------------------------- whose slots they are


def common(setting: Setting) -> Account:
    return setting.tree.queues.accounts[0]


def miscount_a_namespace(setting: Setting) -> None:
    setting.tree.roots.spaces[namespace("guest")].device_bytes -= 8


def miscount_a_namespace_on_the_host(setting: Setting) -> None:
    setting.tree.roots.spaces[namespace("guest")].host_bytes += 8


def miscount_an_account(setting: Setting) -> None:
    common(setting).device_bytes += 8


def miscount_an_account_on_the_host(setting: Setting) -> None:
    common(setting).host_bytes += 8


def miscount_what_is_locked_of_an_account(setting: Setting) -> None:
    common(setting).locked_bytes -= 8


def charge_somebody_else(setting: Setting) -> None:
    shareholder = setting.tree.queues.accounts[1]
    shareholder.device_bytes += 8
    common(setting).device_bytes -= 8
