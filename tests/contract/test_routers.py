"""What every Router promises, and what each adds."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.routing.index import PageIndex
from gateway.routing.opening import open_router
from gateway.routing.router import Candidate, Placement, Router
from gateway.routing.simple import BySession, LeastLoaded, RoundRobin
from hicache.keys import Namespace, PrefixKey

POLICIES = ["cache_aware", "round_robin", "least_loaded", "session"]
LARGE = [f"a-name-of-some-length-{i}.workers.a-namespace.svc.cluster.local:50061" for i in range(1000)]


class Chosen(list[tuple[str, str]]):
    def worker_chosen(self, policy: str, reason: str) -> None:
        self.append((policy, reason))


def placement(*token_ids: int) -> Placement:
    session = b"".join(token_id.to_bytes(4, "little") for token_id in token_ids)
    return Placement("model", PrefixKey.of(Namespace(b"k" * 16), token_ids), session=session)


def workers(*names: str) -> list[Candidate]:
    return [Candidate(name) for name in names]


@pytest.fixture(params=POLICIES)
def make_router(request: pytest.FixtureRequest) -> Callable[[], Router]:
    return lambda: open_router(request.param, PageIndex(1000), Chosen())


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


def test_a_prompt_of_one_token_and_an_empty_one_get_a_worker(make_router: Callable[[], Router]) -> None:
    router = make_router()
    for tokens in ((), (1,)):
        assert router.choose(placement(*tokens), workers("a", "b"), 0.0).worker in "ab"


def test_the_only_worker_is_chosen_because_it_is_the_only_one(make_router: Callable[[], Router]) -> None:
    assert make_router().choose(placement(1), workers("a"), 0.0).reason == "only"


def test_time_that_passes_by_a_day_changes_nothing_that_is_promised(make_router: Callable[[], Router]) -> None:
    router = make_router()
    chosen = {router.choose(placement(i), workers(*"abcd"), 86_400.0 * i).worker for i in range(64)}
    assert chosen == set("abcd")


def test_workers_that_come_and_go_for_ever_leave_nothing_behind(make_router: Callable[[], Router]) -> None:
    router = make_router()
    for i in range(2000):
        router.choose(placement(i), workers("a", f"worker-{i}"), float(i))
    sizes = [len(each) for each in containers(router)]
    assert max(sizes, default=0) < 500


def containers(what: object, depth: int = 4) -> list[dict[object, object]]:
    """Every dict that a router keeps."""
    found: list[dict[object, object]] = []
    for each in vars(what).values() if hasattr(what, "__dict__") else ():
        if isinstance(each, dict):
            found.append(each)
        elif depth:
            found += containers(each, depth - 1)
    return found


def test_an_explanation_is_json_and_small_however_many_workers_there_are(make_router: Callable[[], Router]) -> None:
    choice = make_router().choose(placement(*range(200)), workers(*LARGE), 0.0)
    told = json.dumps(choice.explanation, separators=(",", ":"))
    assert json.loads(told)["worker"] == choice.worker
    assert len(told) < 3500


@pytest.mark.parametrize("policy", POLICIES)
def test_each_choice_is_told_with_its_policy_and_reason(policy: str) -> None:
    heard = Chosen()
    router = open_router(policy, PageIndex(1000), heard)
    choices = [router.choose(placement(i), workers("a", "b"), 0.0) for i in range(3)]
    assert heard == [(policy, choice.reason) for choice in choices]


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


def test_the_least_loaded_is_who_would_begin_first_by_its_own_speed() -> None:
    fast = Candidate("fast", pending_tokens=3000, prefill_tokens_per_s=10_000.0)
    slow = Candidate("slow", pending_tokens=1000, prefill_tokens_per_s=1_000.0)
    assert LeastLoaded().choose(placement(1), [slow, fast], 0.0).worker == "fast"


def test_of_workers_that_would_begin_at_once_the_least_loaded_has_the_fewest_sequences() -> None:
    busy, idle = Candidate("busy", running_sequences=2), Candidate("idle", running_sequences=1)
    assert LeastLoaded().choose(placement(1), [busy, idle], 0.0).worker == "idle"


def test_equally_loaded_workers_are_taken_in_turn_not_by_their_place() -> None:
    router = LeastLoaded()
    counts = Counter(router.choose(placement(1), workers(*"abcd"), 0.0).worker for _ in range(40))
    assert set(counts.values()) == {10}


def test_a_session_stays_where_it_is_whoever_chooses_and_in_which_order_workers_stand() -> None:
    for i in range(50):
        first = BySession().choose(placement(i), workers(*"abcd"), 0.0).worker
        assert BySession().choose(placement(i), workers(*"dbca"), 1.0).worker == first


def test_sessions_move_only_from_a_worker_that_goes_and_only_to_one_that_comes() -> None:
    router = BySession()
    for i in range(200):
        of_four = router.choose(placement(i), workers(*"abcd"), 0.0).worker
        of_three = router.choose(placement(i), workers(*"abc"), 0.0).worker
        assert of_four in {of_three, "d"}


def test_sessions_are_spread_over_all_workers() -> None:
    router = BySession()
    counts = Counter(router.choose(placement(i), workers(*"abcd"), 0.0).worker for i in range(2000))
    assert max(counts.values()) < 1.2 * 500


def test_requests_without_a_session_are_kept_with_those_of_their_namespace() -> None:
    router = BySession()
    nameless = [replace(placement(i), session=b"") for i in range(20)]
    assert len({router.choose(each, workers(*"abcd"), 0.0).worker for each in nameless}) == 1
