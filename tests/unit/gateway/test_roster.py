"""Which links are made, kept, retired and dropped."""

import pytest

from gateway.dispatch.roster import Changes, LinkState, Roster

FORGET_S = 30.0


@pytest.fixture
def roster() -> Roster:
    return Roster(FORGET_S)


def up(address: str, in_flight: int = 0) -> LinkState:
    return LinkState(address, is_up=True, in_flight=in_flight)


def down(address: str) -> LinkState:
    return LinkState(address, is_up=False, in_flight=0)


def test_a_registered_worker_without_a_link_joins(roster: Roster) -> None:
    assert roster.changes({"a": "a:1", "b": "b:1"}, [up("a:1")], 0.0) == Changes(join=("b:1",))


def test_a_link_that_is_up_stays_without_an_entry_however_long(roster: Roster) -> None:
    roster.changes({"a": "a:1"}, [], 0.0)
    for now in (1.0, 100.0, 10_000.0):
        assert roster.changes({}, [up("a:1", in_flight=3)], now) == Changes()


def test_a_link_that_is_down_stays_as_long_as_its_worker_is_registered(roster: Roster) -> None:
    for now in (0.0, 100.0, 10_000.0):
        assert roster.changes({"a": "a:1"}, [down("a:1")], now) == Changes()


def test_a_link_that_is_down_and_without_an_entry_is_dropped_after_a_while(roster: Roster) -> None:
    assert roster.changes({}, [down("a:1")], 0.0) == Changes()
    assert roster.changes({}, [down("a:1")], FORGET_S - 1) == Changes()
    assert roster.changes({}, [down("a:1")], FORGET_S) == Changes(drop=("a:1",))


@pytest.mark.parametrize("link", [up("a:1"), down("a:1")], ids=["was up", "was registered"])
def test_the_while_begins_again_when_it_was_up_or_registered_in_between(roster: Roster, link: LinkState) -> None:
    roster.changes({}, [down("a:1")], 0.0)
    roster.changes({} if link.is_up else {"a": "a:1"}, [link], FORGET_S - 1)
    assert roster.changes({}, [down("a:1")], FORGET_S + 1) == Changes()
    assert roster.changes({}, [down("a:1")], 2 * FORGET_S + 1) == Changes(drop=("a:1",))


def test_nobody_is_forgotten_for_a_time_in_which_nobody_could_register(roster: Roster) -> None:
    roster.changes({}, [down("a:1")], 0.0)
    assert roster.unknown() == Changes()
    assert roster.changes({}, [down("a:1")], FORGET_S + 1) == Changes()


def test_a_worker_that_moved_gets_a_new_link_and_the_old_one_is_emptied(roster: Roster) -> None:
    roster.changes({"a": "a:1"}, [], 0.0)
    moved = roster.changes({"a": "a:2"}, [up("a:1", in_flight=2)], 1.0)
    assert moved == Changes(join=("a:2",), retire=frozenset({"a:1"}))
    links = [up("a:1", in_flight=1), up("a:2")]
    assert roster.changes({"a": "a:2"}, links, 2.0) == Changes(retire=frozenset({"a:1"}))
    assert roster.unknown() == Changes(retire=frozenset({"a:1"}))
    assert roster.changes({"a": "a:2"}, [up("a:1"), up("a:2")], 3.0) == Changes(drop=("a:1",))


def test_the_old_link_of_a_worker_that_moved_is_dropped_at_once_when_it_is_down(roster: Roster) -> None:
    roster.changes({"a": "a:1"}, [], 0.0)
    assert roster.changes({"a": "a:2"}, [down("a:1"), up("a:2")], 1.0) == Changes(drop=("a:1",))


def test_two_workers_at_one_address_are_one_link(roster: Roster) -> None:
    assert roster.changes({"a": "x:1", "b": "x:1"}, [], 0.0) == Changes(join=("x:1",))
    assert roster.changes({"b": "x:1"}, [up("x:1")], 1.0) == Changes()
