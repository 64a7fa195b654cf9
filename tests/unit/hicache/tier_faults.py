"""Ways to break a cache with two tiers, each a function of the same shape: more of `faults`."""

from hicache.radix.node import NO_SLOTS, Node
from tests.unit.hicache.faults import Copying, Setting, enter


def shorten_what_the_host_has(setting: Setting) -> None:
    setting.copy(setting.cold)
    del setting.cold.host_value[-8:]


def keep_a_node_that_no_tier_has(setting: Setting) -> None:
    setting.cold.value = NO_SLOTS


def keep_an_unfinished_copy_alone(setting: Setting) -> None:
    setting.copy(setting.cold)
    setting.cold.mirroring = True
    setting.cold.value = NO_SLOTS


def take_a_path_off_the_device(setting: Setting) -> None:
    setting.copy(setting.stem)
    setting.stem.value = NO_SLOTS


def expect_what_is_elsewhere(setting: Setting) -> None:
    setting.stem.recent = setting.guest


def expect_a_root(setting: Setting) -> None:
    setting.barrier.recent = setting.guest_root


def expect_what_is_on_the_host(setting: Setting) -> None:
    setting.settle(setting.cold)
    space = setting.cold.space
    assert space is not None
    freed = setting.cache._removal.evict(len(setting.cold.value), space.account)
    setting.cache._slots.free_packed(freed)
    setting.cache.check()
    setting.stem.recent = setting.cold


def miscount_children_on_the_device(setting: Setting) -> None:
    setting.stem.device_children -= 1


def miscount_children_behind_a_barrier(setting: Setting) -> None:
    setting.barrier.device_children = 0


def count_children_of_a_root(setting: Setting) -> None:
    setting.guest_root.device_children = 1


def miscount_blockers(setting: Setting) -> None:
    setting.stem.blockers += 1


def miscount_blockers_behind_a_barrier(setting: Setting) -> None:
    setting.barrier.blockers -= 1


def settle_without_a_copy(setting: Setting) -> None:
    setting.cold.settled = True
    setting.stem.blockers -= 1


def settle_what_is_not_copied_yet(setting: Setting) -> None:
    setting.settle(setting.guest)
    setting.guest.mirroring = True


def settle_what_is_used(setting: Setting) -> None:
    setting.copy(setting.held)
    setting.held.settled = True
    setting.stem.blockers -= 1


def settle_before_what_is_below(setting: Setting) -> None:
    setting.copy(setting.barrier)
    setting.barrier.settled = True


def mirror_without_a_destination(setting: Setting) -> None:
    setting.guest.mirroring = True


def work_on_host_slots_uncounted(setting: Setting) -> None:
    setting.copy(setting.cold)
    setting.cold.holders = (Copying(setting.cold),)


def work_on_host_slots_that_are_not_there(setting: Setting) -> None:
    setting.cold.holders = (Copying(setting.cold),)
    setting.cold.host_ref_counter = 1


def work_on_another_node(setting: Setting) -> None:
    setting.copy(setting.cold)
    setting.cold.holders = (Copying(setting.guest),)
    setting.cold.host_ref_counter = 1


def forget_a_spare_copy(setting: Setting) -> None:
    setting.copy(setting.cold)
    setting.tree.queues.spare.clear()


def spare_a_copy_that_is_needed(setting: Setting) -> None:
    setting.settle(setting.cold)
    setting.tree.queues.spare[setting.cold] = None


def spare_what_is_in_no_tree(setting: Setting) -> None:
    setting.tree.queues.spare[Node(bytearray(), NO_SLOTS, None, None, 0.0)] = None


def keep_a_settled_node_among_the_dirty(setting: Setting) -> None:
    setting.settle(setting.guest)
    setting.tree.queues.withdraw(setting.guest)
    enter(setting, setting.guest)


def keep_an_inner_node_among_the_leaves(setting: Setting) -> None:
    setting.settle(setting.guest)
    setting.tree.queues.withdraw(setting.barrier)
    enter(setting, setting.barrier)


def wait_without_a_ticket(setting: Setting) -> None:
    setting.cold.ticket = 0


def hold_a_ticket_for_nothing(setting: Setting) -> None:
    setting.held.ticket = 77


def wait_in_two_queues(setting: Setting) -> None:
    setting.tree.queues.flying[0].add(setting.cold)
    setting.tree.queues.dirty[0]._queue.push(setting.cold)


def miscount_settled(setting: Setting) -> None:
    setting.tree.queues.settled_bytes += 8
