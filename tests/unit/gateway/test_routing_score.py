"""What a request costs where, and what workers have been given."""

import pytest

from gateway.routing.accounts import Accounts
from gateway.routing.cache_aware import CacheAware
from gateway.routing.expected import Pages
from gateway.routing.index import DEVICE, HOST, PageIndex
from gateway.routing.names import NameScheme
from gateway.routing.popularity import MAX_REMEMBERED, Popularity
from gateway.routing.router import Candidate, Choice, Placement
from gateway.routing.score import Cost, Hit, Wanted, Weights, cost_of, prefill_speeds, price_of
from gateway.routing.stores import Stores
from tests.unit.hicache.support import key

SPEED = 1000.0
WEIGHTS = Weights()
PROMPT = key(list(range(640)))
SCHEME = NameScheme(b"seed", 64)


NOTHING = Hit()


def cost(candidate: Candidate, hit: Hit = NOTHING, adapter: str = "") -> Cost:
    return cost_of(candidate, hit, Wanted(1000, 1.0, SPEED, adapter), SPEED, 0.0, WEIGHTS)


def test_a_request_waits_for_what_is_pending_and_for_what_is_missing() -> None:
    found = cost(Candidate("a", pending_tokens=500), Hit(device=200))
    assert (found.wait_s, found.compute_s) == (0.5, 0.8)
    assert found.total_s == pytest.approx(1.3)


def test_tokens_on_the_host_cost_their_loading_and_never_more_than_computing_them() -> None:
    quick = Candidate("a", load_tokens_per_s=10_000.0)
    slow = Candidate("a", load_tokens_per_s=1.0)
    hit = Hit(device=400, host=600)
    assert cost(quick, hit).load_s == pytest.approx(0.06)
    assert cost(slow, hit).load_s == pytest.approx(0.6)


def test_an_adapter_that_is_not_resident_costs_its_loading() -> None:
    there = Candidate("a", resident_adapters=frozenset({"revision"}))
    assert cost(there, adapter="revision").adapter_s == 0.0
    assert cost(Candidate("b"), adapter="revision").adapter_s > 0.0
    assert cost(Candidate("b")).adapter_s == 0.0


def test_more_sequences_cost_more() -> None:
    assert cost(Candidate("a", running_sequences=4)).total_s > cost(Candidate("b", running_sequences=3)).total_s


def test_a_copy_costs_less_the_more_requests_have_come_for_it() -> None:
    assert price_of(1.0, WEIGHTS) == WEIGHTS.compute_price
    assert price_of(10.0, WEIGHTS) == WEIGHTS.compute_price / 10


def test_a_copy_costs_the_same_wherever_it_is_made() -> None:
    wanted = Wanted(1000, 5.0, SPEED)
    slow, quick = (cost_of(Candidate("a"), NOTHING, wanted, speed, 0.0, WEIGHTS) for speed in (SPEED / 2, SPEED * 2))
    assert slow.copy_s == quick.copy_s == 4.0
    assert slow.total_s - quick.total_s == pytest.approx(1.5)


def test_computing_is_never_a_gain_however_many_share_it() -> None:
    wanted = Wanted(1000, 0.01, SPEED)
    all_of_it = Hit(device=1000)
    for speed in (SPEED / 4, SPEED, SPEED * 4):
        found = [cost_of(Candidate("a"), hit, wanted, speed, 0.0, WEIGHTS).total_s for hit in (NOTHING, all_of_it)]
        assert found[0] > found[1]


def test_speeds_that_hardly_differ_are_one_and_an_unknown_one_is_the_usual() -> None:
    speeds = [100.0, 110.0, 90.0, 25.0, 0.0]
    candidates = [Candidate(str(i), prefill_tokens_per_s=speed) for i, speed in enumerate(speeds)]
    assert prefill_speeds(candidates, 0.25) == (95.0, [95.0, 95.0, 95.0, 25.0, 95.0])


def test_where_no_speed_is_known_all_are_alike() -> None:
    usual, speeds = prefill_speeds([Candidate("a"), Candidate("b")], 0.25)
    assert speeds == [usual, usual]


# ------------------------------------------------------------------------------------------------------------- accounts


def test_half_of_what_was_given_is_forgotten_in_each_half_life() -> None:
    accounts, workers = Accounts(10.0, 60.0), [Candidate("a"), Candidate("b")]
    accounts.seconds(workers, 0.0)
    accounts.charge("a", 8.0, 0.0)
    assert accounts.seconds(workers, 20.0) == [pytest.approx(2.0), 0.0]


def test_accounts_are_right_after_years() -> None:
    accounts, workers = Accounts(10.0, 60.0), [Candidate("a"), Candidate("b")]
    for day in range(1000):
        accounts.seconds(workers, 86_400.0 * day)
        accounts.charge("a", 8.0, 86_400.0 * day)
    assert accounts.seconds(workers, 86_400.0 * 999 + 10.0) == [pytest.approx(4.0), pytest.approx(0.0)]


def test_who_joins_begins_with_the_mean_and_half_of_what_it_is_given_counts_while_it_is_new() -> None:
    accounts, workers = Accounts(1e9, 60.0), [Candidate("a"), Candidate("b")]
    accounts.seconds(workers, 0.0)
    accounts.charge("a", 8.0, 0.0)
    late = Candidate("late", connected_at=5.0)
    assert accounts.seconds([*workers, late], 5.0)[2] == pytest.approx(4.0)
    assert accounts.is_warming("late", 5.0)
    accounts.charge("late", 2.0, 5.0)
    assert accounts.seconds([*workers, late], 5.0)[2] == pytest.approx(5.0)
    assert not accounts.is_warming("late", 70.0)


def test_where_all_begin_together_nobody_is_new() -> None:
    accounts = Accounts(10.0, 60.0)
    accounts.seconds([Candidate("a"), Candidate("b")], 0.0)
    assert not accounts.is_warming("a", 0.0)


def test_a_worker_that_connects_again_begins_with_the_mean_again() -> None:
    accounts = Accounts(1e9, 60.0)
    accounts.seconds([Candidate("a"), Candidate("b")], 0.0)
    accounts.charge("a", 8.0, 0.0)
    assert accounts.seconds([Candidate("a"), Candidate("b", connected_at=9.0)], 9.0)[1] == pytest.approx(8.0)


# ----------------------------------------------------------------------------------------------------------- the choice


class Fleet:
    """Two workers that name pages alike, and their router."""

    def __init__(self) -> None:
        self.index = PageIndex(1000)
        self.router = CacheAware(self.index)
        self.pages = [Pages(self.index, SCHEME, 1) for _ in range(2)]

    def choose(self, now: float = 0.0, **of_first: object) -> Choice:
        first = Candidate("first", pages=self.pages[0], prefill_tokens_per_s=SPEED, **of_first)  # type: ignore[arg-type]
        second = Candidate("second", pages=self.pages[1], prefill_tokens_per_s=SPEED)
        return self.router.choose(Placement("model", PROMPT), [first, second], now)


def test_who_has_the_prompt_is_chosen_for_it() -> None:
    fleet = Fleet()
    fleet.pages[1].holder.add(DEVICE, SCHEME.names(PROMPT))
    choice = fleet.choose()
    assert (choice.worker, choice.reason) == ("second", "prefix")


def test_a_prompt_on_the_host_is_worth_going_there() -> None:
    fleet = Fleet()
    fleet.pages[1].holder.add(HOST, SCHEME.names(PROMPT))
    assert fleet.choose().worker == "second"


def test_a_wait_that_is_longer_than_the_prompt_is_worth_is_not_taken() -> None:
    fleet = Fleet()
    fleet.pages[0].holder.add(DEVICE, SCHEME.names(PROMPT))
    choice = fleet.choose(pending_tokens=100_000)
    assert (choice.worker, choice.reason) == ("second", "load")


def test_the_explanation_has_the_figures_of_each_worker() -> None:
    fleet = Fleet()
    fleet.pages[1].holder.add(DEVICE, SCHEME.names(PROMPT)[:4])
    fleet.pages[1].holder.add(HOST, SCHEME.names(PROMPT)[:6])
    told = fleet.choose().explanation
    assert (told["worker"], told["reason"], told["prompt_tokens"]) == ("second", "prefix", 640)
    candidates = told["candidates"]
    assert isinstance(candidates, list)
    assert [(each["worker"], each["device_tokens"], each["host_tokens"]) for each in candidates] == [
        ("second", 256, 128),
        ("first", 0, 0),
    ]


def test_workers_that_name_pages_differently_are_compared_by_what_they_have() -> None:
    index = PageIndex(1000)
    other = NameScheme(b"another seed", 32)
    one, two = Pages(index, SCHEME, 1), Pages(index, other, 1)
    one.holder.add(DEVICE, SCHEME.names(PROMPT)[:2])
    two.holder.add(DEVICE, other.names(PROMPT)[:8])
    candidates = [Candidate("one", pages=one), Candidate("two", pages=two)]
    assert CacheAware(index).choose(Placement("model", PROMPT), candidates, 0.0).worker == "two"


def test_what_lies_in_storage_counts_for_who_has_that_store() -> None:
    index = PageIndex(1000)
    stores = Stores(index)
    store = stores.take("store")
    assert store is not None
    store.assume(SCHEME.names(PROMPT))
    with_store = Candidate("with", pages=Pages(index, SCHEME, 1), store=store)
    without = Candidate("without", pages=Pages(index, SCHEME, 1))
    assert CacheAware(index).choose(Placement("model", PROMPT), [without, with_store], 0.0).worker == "with"


# ---------------------------------------------------------------------------------------------- stores and popularity


def test_a_store_outlives_its_workers_and_is_the_same_when_they_come_back() -> None:
    index = PageIndex(1000)
    stores = Stores(index)
    first = stores.take("store")
    assert first is not None
    first.assume(SCHEME.names(PROMPT))
    stores.leave("store")
    again = stores.take("store")
    assert again is first
    assert index.match(SCHEME.names(PROMPT), [again])[0].held == 10


def test_stores_that_nobody_has_are_few() -> None:
    index = PageIndex(100_000)
    stores = Stores(index)
    for i in range(100):
        holder = stores.take(f"store-{i}")
        assert holder is not None
        holder.assume([i.to_bytes(16, "little")])
        stores.leave(f"store-{i}")
    assert len(index) <= 10


def test_no_store_is_none() -> None:
    stores = Stores(PageIndex(10))
    assert stores.take("") is None
    stores.leave("")


def test_uses_add_up_fade_and_are_bounded() -> None:
    popularity = Popularity(10.0)
    assert [popularity.used(b"page", 0.0) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert popularity.used(b"page", 10.0) == pytest.approx(2.5)
    for i in range(MAX_REMEMBERED + 10):
        popularity.used(i.to_bytes(8, "little"), 10.0)
    assert len(popularity) == MAX_REMEMBERED
