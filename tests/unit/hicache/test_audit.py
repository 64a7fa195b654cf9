"""A check that cannot fail is none: each way of breaking the cache is found out, by its own message."""

import ast
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hicache.errors import InvariantError
from hicache.radix import audit, audit_queues
from hicache.radix.node import NO_CHILDREN, NO_SLOTS
from tests.unit.hicache import faults, tier_faults
from tests.unit.hicache.faults import Setting

FAULTS: dict[Callable[[Setting], None], str] = {
    faults.change_a_token: "edge that is not its own",
    faults.shorten_a_key: "bytes of key",
    faults.shorten_a_node_by_half_a_page: "whole pages",
    faults.swap_two_slots: "slots that its path does not have",
    faults.own_a_slot_twice: "two owners",
    faults.lose_the_slots_of_a_lease: "slots are not 64",
    faults.free_what_is_cached: "slots are not 64",
    faults.take_and_keep: "slots are not 64",
    faults.lock_once_too_often: "lock_ref 2",
    faults.unlock_once_too_often: "lock_ref",
    faults.lock_for_nobody: "lock_ref 1",
    faults.forget_a_lease: "lock_ref 1",
    faults.move_a_lease_up: "lock_ref",
    faults.move_a_lease_aside: "tokens deep",
    faults.give_a_node_another_parent: "another parent",
    faults.empty_a_node: "edge that is not its own",
    faults.leave_an_empty_root: "a root has no children",
    faults.mistake_the_depth: "at depth",
    faults.hang_a_child_by_the_wrong_edge: "edge that is not its own",
    faults.move_a_node_to_another_namespace: "another namespace than its parent",
    faults.forget_a_namespace: "a root in reach is not listed",
    faults.forget_a_root: "a root in reach is not listed",
    faults.rename_a_namespace: "another name",
    faults.rename_a_top: "listed wrongly",
    faults.hang_a_top_below_another: "has a parent",
    faults.list_a_root_that_is_gone: "listed that does not exist",
    faults.list_a_namespace_without_a_root: "listed without a root",
    faults.list_a_root_with_another_namespace: "does not know its roots",
    faults.put_a_node_at_the_top: "is no root",
    faults.lose_a_namespace: "has no namespace",
    faults.drop_without_telling_the_lease: "does not know that its namespace was dropped",
    faults.keep_a_dropped_node: "lock_ref 0",
    faults.keep_what_is_dropped_in_reach: "a dropped node is in reach",
    faults.keep_a_place_for_nothing: "keeps its place for nothing",
    faults.let_the_path_of_what_is_dropped_move: "a path may move away",
    faults.let_a_dropped_node_wait: "a dropped node waits",
    faults.drop_a_node_twice: "reached in two ways",
    tier_faults.shorten_what_the_host_has: "of host_value",
    tier_faults.keep_a_node_that_no_tier_has: "in no tier",
    tier_faults.keep_an_unfinished_copy_alone: "in no tier",
    tier_faults.take_a_path_off_the_device: "its parent is not",
    tier_faults.expect_what_is_elsewhere: "no child of its own",
    tier_faults.expect_a_root: "no child of its own",
    tier_faults.expect_what_is_on_the_host: "what is not on the device",
    tier_faults.miscount_children_on_the_device: "other children on the device",
    tier_faults.miscount_children_behind_a_barrier: "other children on the device",
    tier_faults.count_children_of_a_root: "other children on the device",
    tier_faults.miscount_blockers: "other unsettled children",
    tier_faults.miscount_blockers_behind_a_barrier: "other unsettled children",
    tier_faults.settle_without_a_copy: "a settled node is not on both tiers",
    tier_faults.settle_what_is_not_copied_yet: "a settled node is not on both tiers",
    tier_faults.settle_what_is_used: "a settled node is used",
    tier_faults.settle_before_what_is_below: "a settled node is used, or one below it is not",
    tier_faults.mirror_without_a_destination: "no source or no destination",
    tier_faults.work_on_host_slots_uncounted: "is not counted",
    tier_faults.work_on_host_slots_that_are_not_there: "that are not there",
    tier_faults.work_on_another_node: "does not know its node",
    faults.spare_a_victim: "another queue than its own",
    faults.make_an_inner_node_a_victim: "another queue than its own",
    faults.make_a_locked_leaf_a_victim: "another queue than its own",
    tier_faults.keep_a_settled_node_among_the_dirty: "another queue than its own",
    tier_faults.keep_an_inner_node_among_the_leaves: "another queue than its own",
    tier_faults.wait_without_a_ticket: "a ticket names no victim",
    tier_faults.hold_a_ticket_for_nothing: "a ticket names no victim",
    tier_faults.wait_in_two_queues: "entered in two queues",
    tier_faults.forget_a_spare_copy: r"a device\+host node is wrongly",
    tier_faults.spare_a_copy_that_is_needed: r"a device\+host node is wrongly",
    tier_faults.spare_what_is_in_no_tree: "a spare copy belongs to no node",
    faults.touch_a_victim_unnoticed: "entered at rank",
    faults.disturb_the_order_of_victims: "not the first of its order",
    faults.miscount_victims: "are counted",
    tier_faults.miscount_settled: "settled_bytes is 8",
    faults.miscount_a_namespace: "device_bytes is 8",
    faults.miscount_a_namespace_on_the_host: "host_bytes is 8",
    faults.miscount_an_account: "device_bytes is",
    faults.miscount_an_account_on_the_host: "host_bytes is 8",
    faults.miscount_what_is_locked_of_an_account: "locked_bytes is .* the nodes make",
    faults.charge_somebody_else: "device_bytes is",
    faults.call_a_namespace_somebody_elses: "another account than its tenant's",
    faults.promise_all_there_is: "all of the device is promised",
    faults.promise_more_than_the_host_has: "more is promised than the host has",
    faults.miscount_what_is_promised: "floor_bytes is",
    faults.close_the_common_account: "is not the first",
    faults.number_accounts_alike: "misnumbered",
    faults.keep_an_account_for_nobody: "belongs to nobody",
    faults.lose_a_configured_share: "has no account",
    faults.miscount_cached: "cached_bytes",
    faults.miscount_locked: "locked_bytes",
    faults.miscount_nodes: "num_nodes",
    faults.miscount_leaves: "num_leaves",
    faults.miscount_free: "are counted",
    faults.hang_a_node_in_two_places: "reached in two ways",
    faults.keep_a_dict_for_no_children: "empty dict",
    faults.hang_a_node_below_itself: "above itself",
    faults.write_to_the_children_of_all_leaves: "children that all leaves share",
    faults.write_to_the_slots_that_nobody_has: "slots of all nodes that a tier does not hold",
}


@pytest.fixture(autouse=True)
def shared_constants() -> Iterator[None]:
    yield
    NO_CHILDREN.clear()
    NO_SLOTS.clear()


@pytest.mark.parametrize(("corrupt", "message"), FAULTS.items(), ids=[corrupt.__name__ for corrupt in FAULTS])
def test_check_notices(corrupt: Callable[[Setting], None], message: str) -> None:
    setting = Setting()
    corrupt(setting)
    with pytest.raises(InvariantError, match=message):
        setting.cache.check()


@pytest.mark.parametrize("module", [audit, audit_queues], ids=lambda module: module.__name__)
def test_every_requirement_is_one_that_some_fault_violates(module: ModuleType) -> None:
    path = str(module.__file__)
    violated = {line for corrupt in FAULTS for file, line in lines_that_notice(corrupt) if file == path}
    for call in ast.walk(ast.parse(Path(path).read_text("utf-8"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "require":
            assert violated & {*range(call.lineno, (call.end_lineno or call.lineno) + 1)}, ast.unparse(call)


def lines_that_notice(corrupt: Callable[[Setting], None]) -> list[tuple[str, int | None]]:
    setting = Setting()
    corrupt(setting)
    try:
        setting.cache.check()
    except InvariantError as error:
        return [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    finally:
        NO_CHILDREN.clear()
        NO_SLOTS.clear()
    return []


def test_check_changes_nothing() -> None:
    setting = Setting()
    before = setting.cache.stats()
    setting.cache.check()
    assert setting.cache.stats() == before
    setting.lease.release()
    setting.cache.check()


def test_an_invariant_error_is_an_assertion_error() -> None:
    assert issubclass(InvariantError, AssertionError)
