"""While a sequence queues, storage brings what it has of the prompt: for how long, for whom, and how it is counted."""

from dataclasses import replace

import pytest

from hicache.cache import Hit
from hicache.storage.memory import MemoryStore
from tests.unit.worker.engine.harness import TENANT_A, answer, make_request, prompt
from tests.unit.worker.engine.tiered_rig import FETCH_TIMEOUT_S, RULES, TieredRig
from worker.config import EngineConfig
from worker.errors import Failure, FailureCode

SAVED = prompt(40)  # what storage has
TOKENS = [*SAVED, *prompt(5, 100)]
CONFIG = EngineConfig(order="priority", headroom_tokens=1)
PATIENT = replace(RULES, copy_timeout_s=1_000.0)


def restarted_rig(num_slots: int = 200, *, max_fetch_pages: int = 1000) -> TieredRig:
    """Return a rig that knows nothing yet, and whose store has SAVED from another one."""
    store = MemoryStore(1 << 20)
    other = TieredRig(store=store)
    other.submit(make_request(0, SAVED, max_new_tokens=1))
    other.serve_all()
    other.save()
    return TieredRig(num_slots, store=store, config=CONFIG, rules=PATIENT, max_fetch_pages=max_fetch_pages)


def reserved_bytes(rig: TieredRig) -> int:
    return rig.tiers.tier_stats().fetch_reserved_bytes


def test_what_storage_had_is_a_hit_of_storage() -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS))
    rig.serve_all()
    assert rig.admission(0).hit == Hit(0, 0, 40)
    assert rig.tokens(0) == answer(TOKENS, 4)
    rig.settle()
    rig.assert_nothing_is_left()


def test_a_sequence_waits_for_storage_while_others_overtake_it() -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS))
    rig.submit(make_request(1, [1]))  # shorter than a page: there is nothing to ask for
    rig.step()
    assert rig.tokens(0) == []
    assert len(rig.tokens(1)) == 1
    rig.run()
    assert rig.tokens(1) == answer([1], 4)
    assert rig.token_times[0, 1][-1] < rig.token_times[0, 0][0]


def test_a_sequence_waits_for_storage_no_longer_than_the_time_out() -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS))
    rig.run()
    assert FETCH_TIMEOUT_S <= rig.token_times[0, 0][0] <= FETCH_TIMEOUT_S + 1
    assert rig.admission(0).hit.total == 0
    assert rig.tokens(0) == answer(TOKENS, 4)
    # The store has not let go of it yet.
    assert reserved_bytes(rig) > 0
    rig.settle()
    rig.assert_nothing_is_left()


def test_a_store_that_fails_is_not_waited_for() -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS))
    rig.io.fail("the store is away")
    rig.run()
    assert rig.token_times[0, 0][0] == 1.0
    assert rig.tokens(0) == answer(TOKENS, 4)


def test_whom_there_are_no_bytes_for_does_not_wait() -> None:
    rig = restarted_rig(max_fetch_pages=10)
    rig.submit(make_request(0, TOKENS))
    rig.submit(make_request(1, prompt(40, 1)))
    rig.step()
    assert len(rig.tokens(1)) == 1
    assert rig.tokens(0) == []


@pytest.mark.parametrize("how", ["cancel", "deadline", "abort"])
@pytest.mark.parametrize("begun", [False, True])
def test_who_ends_while_storage_is_asked_gives_its_bytes_back(how: str, begun: bool) -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS, deadline=1.5 if how == "deadline" else None))
    rig.step()
    if begun:
        rig.io.finish()  # the lookup; the pages are asked for next
        rig.engine.idle(rig.now)
        assert rig.io.tasks[0].kind == "load"
        rig.io.advance()
    if how == "cancel":
        rig.engine.cancel((0, 0), rig.now)
    elif how == "abort":
        rig.engine.abort(Failure(FailureCode.INTERNAL, "the engine failed"), rig.now)
    rig.step()
    assert rig.finish(0) is not None
    assert not rig.engine.has_work
    rig.settle()
    rig.assert_nothing_is_left()
    assert rig.tiers.tier_stats().host_free_slots == rig.host_slots


def test_a_dropped_namespace_is_neither_fetched_nor_waited_for() -> None:
    rig = restarted_rig()
    rig.submit(make_request(0, TOKENS))
    rig.step()
    rig.tiers.drop(TENANT_A)
    rig.run()
    assert rig.token_times[0, 0][0] == 2.0
    assert rig.admission(0).hit.total == 0
    assert rig.tokens(0) == answer(TOKENS, 4)
    rig.settle()
    rig.assert_nothing_is_left()


def test_what_storage_brought_counts_for_storage_even_if_its_sequence_pauses_while_it_loads() -> None:
    rig = restarted_rig(100)
    rig.submit(make_request(0, TOKENS))
    while not rig.loads:
        rig.io.finish_all()
        rig.step()
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=70, priority=1))
    while rig.observer.num_pauses == 0:
        rig.io.finish_all()
        rig.step()
    rig.serve_all()
    assert rig.admission(0).hit == Hit(0, 0, 40)
    assert rig.tokens(0) == answer(TOKENS, 4)
    assert rig.tokens(1) == answer(prompt(20, 1), 70)


def test_who_pauses_does_not_wait_for_storage_again() -> None:
    rig = restarted_rig(100)
    rig.submit(make_request(0, TOKENS, max_new_tokens=40))
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=70, priority=1))
    rig.io.finish_all()
    while rig.observer.num_pauses == 0:
        rig.end_copies()
        rig.io.finish_all()
        rig.step()
    num_fetched = rig.tiers.tier_stats().fetched_tokens
    assert num_fetched == 40
    rig.serve_all()
    assert rig.tiers.tier_stats().fetched_tokens == num_fetched
    assert rig.tokens(0) == answer(TOKENS, 40)
    assert rig.tokens(1) == answer(prompt(20, 1), 70)
