"""What becomes of a registered adapter, whatever an operator asks for."""

from dataclasses import replace

import pytest

from gateway.control.keeping import plan
from gateway.control.registrations import AdapterKey, Registration, Retired, Weights
from gateway.dispatch.adapters import ReportedAdapter
from gateway.errors import FailedPreconditionError, InvalidRequestError

KEY = AdapterKey("tiny", "poet", frozenset())
A, B, C = (Weights(letter * 16, f"/adapters/{letter}", at) for letter, at in (("a", 1.0), ("b", 2.0), ("c", 3.0)))


def shares(registration: Registration) -> list[tuple[Weights, int]]:
    registration.check()
    return [(share.weights, share.percent) for share in registration.shares]


def retired(registration: Registration) -> set[str]:
    return {each.revision for each in registration.retired}


@pytest.fixture
def first() -> Registration:
    return Registration(KEY).with_weights(A, 100, 10.0)


@pytest.fixture
def canary(first: Registration) -> Registration:
    return first.with_weights(B, 10, 20.0)


def test_the_first_weights_have_all_traffic(first: Registration) -> None:
    assert shares(first) == [(A, 100)]
    assert first.previous is None


def test_new_weights_take_over_and_the_old_ones_are_kept_to_go_back_to(first: Registration) -> None:
    after = first.with_weights(B, 100, 20.0)
    assert shares(after) == [(B, 100)]
    assert (after.previous, retired(after)) == (A, {A.revision})


def test_new_weights_with_a_share_stand_beside_the_old_ones(canary: Registration) -> None:
    assert shares(canary) == [(A, 90), (B, 10)]
    assert retired(canary) == set()


def test_third_weights_are_refused_with_what_to_do(canary: Registration) -> None:
    for ask in (lambda: canary.with_weights(C, 10, 30.0), lambda: canary.may_add(C.path)):
        with pytest.raises(FailedPreconditionError, match="SplitAdapterTraffic or RollBackAdapter"):
            ask()
    canary.may_add(B.path)


def test_the_same_weights_again_change_nothing(first: Registration, canary: Registration) -> None:
    assert first.with_weights(replace(A, registered_at=99.0), 100, 99.0) == first
    assert canary.with_weights(replace(B, registered_at=99.0), 10, 99.0) == canary


def test_weights_that_are_there_may_be_given_another_share_by_registering_them_again(canary: Registration) -> None:
    assert shares(canary.with_weights(B, 60, 30.0)) == [(A, 40), (B, 60)]
    assert shares(canary.with_weights(A, 60, 30.0)) == [(A, 60), (B, 40)]


@pytest.mark.parametrize(("percent", "expected"), [(50, [(A, 50), (B, 50)]), (100, [(B, 100)]), (0, [(A, 100)])])
def test_traffic_is_split_anew(canary: Registration, percent: int, expected: list[tuple[Weights, int]]) -> None:
    after = canary.split(B.revision[:8], percent, 30.0)
    assert shares(after) == expected
    gone = {A, B} - {weights for weights, _ in expected}
    assert retired(after) == {weights.revision for weights in gone}
    assert after.previous == (gone.pop() if gone else None)


@pytest.mark.parametrize(
    ("revision", "told"), [("aaaaaaa", "at least 8"), ("dddddddd", "no revision that has traffic"), ("", "at least 8")]
)
def test_a_split_names_one_of_the_revisions(canary: Registration, revision: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        canary.split(revision, 50, 30.0)


def test_the_beginning_of_both_revisions_names_neither(first: Registration) -> None:
    twin = first.with_weights(Weights("a" * 15 + "b", "/twin", 5.0), 10, 20.0)
    with pytest.raises(InvalidRequestError, match="both"):
        twin.split("a" * 15, 50, 30.0)


def test_one_revision_cannot_be_split(first: Registration) -> None:
    assert first.split(A.revision, 100, 20.0) == first
    with pytest.raises(FailedPreconditionError, match="one revision only"):
        first.split(A.revision, 50, 20.0)


def test_a_canary_is_rolled_back_to_what_it_stands_beside(canary: Registration) -> None:
    after = canary.rolled_back(30.0)
    assert shares(after) == [(A, 100)]
    assert (after.previous, retired(after)) == (None, {B.revision})


def test_a_canary_that_is_rolled_back_leaves_what_was_there_before_it(first: Registration) -> None:
    after = first.with_weights(B, 100, 20.0).with_weights(C, 10, 30.0).rolled_back(40.0)
    assert shares(after) == [(B, 100)]
    assert after.previous == A


def test_rolling_back_twice_comes_back(first: Registration) -> None:
    after = first.with_weights(B, 100, 20.0)
    back = after.rolled_back(30.0)
    assert (shares(back), back.previous, retired(back)) == ([(A, 100)], B, {B.revision})
    assert shares(back.rolled_back(40.0)) == [(B, 100)]


def test_without_anything_before_there_is_no_way_back(first: Registration) -> None:
    with pytest.raises(FailedPreconditionError, match="no revision to go back to"):
        first.rolled_back(20.0)


def test_unregistered_it_is_remembered_until_no_worker_can_have_it_any_more(canary: Registration) -> None:
    gone = canary.unregistered(100.0, 5.0)
    assert shares(gone) == []
    assert {(each.revision, each.grace_s) for each in gone.retired} == {(A.revision, 5.0), (B.revision, 5.0)}
    assert not gone.is_forgotten(100.0 + 6 * 86_400)
    assert gone.is_forgotten(100.0 + 8 * 86_400)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ((), (), False), (("acme",), ("acme",), False), ((), ("acme",), True), (("acme",), (), True),
        (("acme",), ("globex",), False), (("acme", "globex"), ("globex", "x"), True),
    ],
)  # fmt: skip
def test_keys_overlap_where_a_tenant_would_mean_both(
    one: tuple[str, ...], other: tuple[str, ...], overlap: bool
) -> None:
    first, second = AdapterKey("m", "poet", frozenset(one)), AdapterKey("m", "poet", frozenset(other))
    assert first.overlaps(second) is overlap
    assert not first.overlaps(replace(second, name="bard"))
    assert not first.overlaps(replace(second, model="other"))


# ------------------------------------------------------------------------------------------------ what a worker lacks


def reported(revision: str, *tenants: str, name: str = "poet", loaded_at: int = 0) -> ReportedAdapter:
    return ReportedAdapter(name, revision, frozenset(tenants), (loaded_at, 0))


def test_a_worker_gets_what_it_lacks(canary: Registration) -> None:
    assert plan([canary], "tiny", []).loads == ((KEY, A), (KEY, B))
    assert plan([canary], "tiny", [reported(A.revision)]).loads == ((KEY, B),)
    assert plan([canary], "tiny", [reported(A.revision), reported(B.revision)]).loads == ()
    assert plan([canary], "other", []).loads == ()


def test_an_adapter_for_other_tenants_or_by_another_name_is_not_what_is_lacking(first: Registration) -> None:
    others = [reported(A.revision, "acme"), reported(A.revision, name="bard")]
    assert plan([first], "tiny", others).loads == ((KEY, A),)


def test_a_worker_loses_what_was_registered_and_nothing_else(first: Registration) -> None:
    after = first.with_weights(B, 100, 1000.0)
    lies_there = [reported(B.revision), reported(A.revision), reported("by hand"), reported(A.revision, "acme")]
    assert plan([after], "tiny", lies_there).unloads == ((KEY, Retired(A.revision, 1000.0)),)
    assert plan([after.unregistered(1001.0, 3.0)], "tiny", lies_there).unloads == (
        (KEY, Retired(A.revision, 1000.0)), (KEY, Retired(B.revision, 1001.0, 3.0)),
    )  # fmt: skip


def test_what_was_given_to_a_worker_again_long_after_is_somebody_elses(first: Registration) -> None:
    gone = first.unregistered(1000.0, 30.0)
    assert plan([gone], "tiny", [reported(A.revision, loaded_at=1010)]).unloads
    assert not plan([gone], "tiny", [reported(A.revision, loaded_at=2000)]).unloads
