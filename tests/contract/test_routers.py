"""What every Router promises, and what round robin adds."""

from collections import Counter
from collections.abc import Callable

import pytest

from gateway.routing.router import Candidate, Placement, Router
from gateway.routing.simple import RoundRobin
from hicache.keys import Namespace, PrefixKey


def placement(*token_ids: int) -> Placement:
    return Placement("model", PrefixKey.of(Namespace(b"k" * 16), token_ids))


def workers(*names: str) -> list[Candidate]:
    return [Candidate(name, 0, 0, 0) for name in names]


@pytest.fixture(params=[RoundRobin])
def make_router(request: pytest.FixtureRequest) -> Callable[[], Router]:
    make: Callable[[], Router] = request.param
    return make


def test_the_choice_is_always_one_of_the_candidates(make_router: Callable[[], Router]) -> None:
    router = make_router()
    for names in ("abc", "b", "cd", "a", "dcba"):
        candidates = workers(*names)
        for _ in range(5):
            assert router.choose(placement(1, 2, 3), candidates, 0.0).worker in names


def test_equal_idle_workers_all_get_work(make_router: Callable[[], Router]) -> None:
    router = make_router()
    chosen = {router.choose(placement(i), workers(*"abcd"), 0.0).worker for i in range(64)}
    assert chosen == set("abcd")


def test_round_robin_is_even() -> None:
    router = RoundRobin()
    counts = Counter(router.choose(placement(1, 2, 3), workers(*"abc"), 0.0).worker for _ in range(99))
    assert set(counts.values()) == {33}


def test_a_worker_that_comes_and_goes_does_not_upset_the_turn_of_the_others() -> None:
    router = RoundRobin()
    counts: Counter[str] = Counter()
    for i in range(90):
        names = "abc" if i % 2 else "ab"
        counts[router.choose(placement(1, 2, 3), workers(*names), 0.0).worker] += 1
    assert abs(counts["a"] - counts["b"]) <= 1
    assert 0 < counts["c"] <= counts["a"]
