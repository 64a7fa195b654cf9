"""Registered adapters: whatever operators do, shares make 100 percent; and each affinity keeps its weights."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.registrations import AdapterKey, Registration, Share, Weights, chosen_order
from gateway.errors import FailedPreconditionError, InvalidRequestError

KEY = AdapterKey("tiny", "poet", frozenset())
OLD, NEW = Weights("a" * 16, "/a", 1.0), Weights("b" * 16, "/b", 2.0)
REVISIONS = [Weights(letter * 16, f"/{letter}", float(i)) for i, letter in enumerate("abcd")]


def canary(percent: int) -> Registration:
    return Registration(KEY, (Share(OLD, 100 - percent), Share(NEW, percent)))


def first_choice(registration: Registration, affinity: str) -> Weights:
    return chosen_order(registration, affinity)[0]


@settings(max_examples=25)
@given(percent=st.integers(1, 99), prefix=st.text(max_size=8))
def test_requests_are_shared_out_by_percent(percent: int, prefix: str) -> None:
    num = 4000
    new = sum(first_choice(canary(percent), f"{prefix}-{i}") is NEW for i in range(num))
    expected, deviation = num * percent / 100, (num * percent * (100 - percent)) ** 0.5 / 100
    assert abs(new - expected) <= 6 * deviation + 1


@given(percent=st.integers(1, 99), affinity=st.text(max_size=32))
def test_the_same_affinity_gets_the_same_weights(percent: int, affinity: str) -> None:
    assert first_choice(canary(percent), affinity) == first_choice(canary(percent), affinity)
    assert sorted(chosen_order(canary(percent), affinity), key=id) == sorted((OLD, NEW), key=id)


@given(percents=st.lists(st.integers(1, 99), min_size=2, max_size=6), affinity=st.text(max_size=32))
def test_growing_a_share_moves_nobody_away_from_it(percents: list[int], affinity: str) -> None:
    got_new = [first_choice(canary(percent), affinity) is NEW for percent in sorted(percents)]
    assert got_new == sorted(got_new)


def test_nobody_is_always_the_first_to_get_new_weights() -> None:
    affinities = [f"user-{i}" for i in range(2000)]
    early = {each for each in affinities if first_choice(canary(10), each) is NEW}
    other = Registration(KEY, (Share(NEW, 90), Share(Weights("c" * 16, "/c", 3.0), 10)))
    again = {each for each in affinities if first_choice(other, each) is not NEW}
    assert len(early & again) < len(early) / 3


@settings(max_examples=200)
@given(data=st.data())
def test_whatever_is_asked_for_in_whatever_order_shares_make_a_whole(data: st.DataObject) -> None:
    registration, now = Registration(KEY), 100.0
    seen: set[str] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        now += 1
        before = registration
        weights, percent = data.draw(st.sampled_from(REVISIONS)), data.draw(st.integers(0, 100))
        action = data.draw(st.sampled_from(["register", "split", "roll back", "unregister"]))
        try:
            if action == "register":
                registration = registration.with_weights(weights, max(1, percent), now)
            elif action == "split":
                registration = registration.split(weights.revision[:10], percent, now)
            elif action == "roll back" and registration.shares:
                registration = registration.rolled_back(now)
            elif action == "unregister":
                registration = registration.unregistered(now, 30.0)
        except (FailedPreconditionError, InvalidRequestError):
            assert registration == before
        registration.check()
        live = {share.weights.revision for share in registration.shares}
        seen |= live
        # Whatever workers have been given is wanted, or is to go.
        assert seen == live | {each.revision for each in registration.retired}
