"""A check that cannot fail is none: each way of breaking the cache is found out, by its own message."""

from collections.abc import Callable

import pytest

from hicache.cache import Lease, PrefixCache
from hicache.errors import InvariantError
from hicache.keys import PrefixKey, Segment
from hicache.node import NO_CHILDREN, Node, Space
from hicache.policy import RankedQueue
from tests.unit.hicache.support import key, namespace, serve, start

SHARED = list(range(8))


class Setting:
    """A cache with something of everything, and names for its pieces.

    tenant     root ── stem (8) ─┬─ cold (4)
                                 └─ held (4)      where `lease` ends, with private slots behind
    public     root ── barrier (4) ── root of guest ── guest (4)
    """

    def __init__(self) -> None:
        self.cache = PrefixCache(64, page_size=2)
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
    setting.cache._slots.allocate(2)


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
    space = setting.tree.roots.spaces[namespace("idle")] = Space(namespace("idle"))
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
    setting.top.parent = setting.tree.roots.tops[namespace("public")]


def drop_without_telling_the_lease(setting: Setting) -> None:
    setting.cache._free_packed(setting.tree.drop(namespace()))


def keep_a_dropped_node(setting: Setting) -> None:
    setting.cache.drop(namespace())
    setting.held.lock_ref = 0


def spare_a_victim(setting: Setting) -> None:
    setting.tree.victims.discard(setting.cold)


def make_an_inner_node_a_victim(setting: Setting) -> None:
    setting.tree.victims.add(setting.barrier)


def make_a_locked_leaf_a_victim(setting: Setting) -> None:
    setting.tree.victims.add(setting.held)


def touch_a_victim_unnoticed(setting: Setting) -> None:
    setting.cold.last_access_time = 99.0


def disturb_the_order_of_victims(setting: Setting) -> None:
    queue = setting.tree.victims._queue
    assert isinstance(queue, RankedQueue)
    queue._heap.sort(reverse=True)


def miscount_victims(setting: Setting) -> None:
    setting.tree.victims._live += 1


def miscount_cached(setting: Setting) -> None:
    setting.tree.cached_bytes += 4


def miscount_locked(setting: Setting) -> None:
    setting.tree.locked_bytes -= 4


def miscount_nodes(setting: Setting) -> None:
    setting.tree.num_nodes += 1


def miscount_leaves(setting: Setting) -> None:
    setting.tree.num_leaves -= 1


def miscount_free(setting: Setting) -> None:
    setting.cache._slots.num_free += 1


def write_to_the_children_of_all_leaves(setting: Setting) -> None:
    NO_CHILDREN[b"stray"] = setting.cold


def hang_a_node_in_two_places(setting: Setting) -> None:
    setting.top.children[b"\0" * 8] = setting.cold


def hang_a_node_below_itself(setting: Setting) -> None:
    setting.top.parent = setting.held


def keep_a_dict_for_no_children(setting: Setting) -> None:
    setting.cold.children = {}


FAULTS: dict[Callable[[Setting], None], str] = {
    change_a_token: "edge that is not its own",
    shorten_a_key: "bytes of key",
    shorten_a_node_by_half_a_page: "whole pages",
    swap_two_slots: "slots that its path does not have",
    own_a_slot_twice: "two owners",
    lose_the_slots_of_a_lease: "slots are not 64",
    free_what_is_cached: "slots are not 64",
    take_and_keep: "slots are not 64",
    lock_once_too_often: "lock_ref 2",
    unlock_once_too_often: "lock_ref",
    lock_for_nobody: "lock_ref 1",
    forget_a_lease: "lock_ref 1",
    move_a_lease_up: "lock_ref",
    move_a_lease_aside: "tokens deep",
    give_a_node_another_parent: "another parent",
    empty_a_node: "edge that is not its own",
    leave_an_empty_root: "a root has no children",
    mistake_the_depth: "at depth",
    hang_a_child_by_the_wrong_edge: "edge that is not its own",
    move_a_node_to_another_namespace: "another namespace than its parent",
    forget_a_namespace: "namespaces listed",
    forget_a_root: "does not know its roots",
    rename_a_namespace: "another name",
    rename_a_top: "listed wrongly",
    hang_a_top_below_another: "has a parent",
    drop_without_telling_the_lease: "does not know that its namespace was dropped",
    keep_a_dropped_node: "lock_ref 0",
    spare_a_victim: "not the unlocked leaves",
    make_an_inner_node_a_victim: "not the unlocked leaves",
    make_a_locked_leaf_a_victim: "not the unlocked leaves",
    touch_a_victim_unnoticed: "entered at rank",
    disturb_the_order_of_victims: "not the first of its order",
    miscount_victims: "are counted",
    miscount_cached: "cached_bytes",
    miscount_locked: "locked_bytes",
    miscount_nodes: "num_nodes",
    miscount_leaves: "num_leaves",
    miscount_free: "are counted",
    hang_a_node_in_two_places: "reached in two ways",
    keep_a_dict_for_no_children: "empty dict",
    hang_a_node_below_itself: "above itself",
    write_to_the_children_of_all_leaves: "children that all leaves share",
}


@pytest.mark.parametrize(("corrupt", "message"), FAULTS.items(), ids=[corrupt.__name__ for corrupt in FAULTS])
def test_check_notices(corrupt: Callable[[Setting], None], message: str) -> None:
    setting = Setting()
    corrupt(setting)
    try:
        with pytest.raises(InvariantError, match=message):
            setting.cache.check()
    finally:
        NO_CHILDREN.clear()


def test_check_changes_nothing() -> None:
    setting = Setting()
    before = setting.cache.stats()
    setting.cache.check()
    assert setting.cache.stats() == before
    setting.lease.release()
    setting.cache.check()


def test_an_invariant_error_is_an_assertion_error() -> None:
    assert issubclass(InvariantError, AssertionError)
