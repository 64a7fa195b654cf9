"""A full line: who has little of it gets in, who has more than its share gives way, and nobody who has begun."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.worker.engine.harness import Rig, make_request, prompt
from tests.unit.worker.engine.waiting_sequences import namespace_of
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason, Request
from worker.errors import Failure, FailureCode

CONFIG = EngineConfig(max_running=2, max_waiting=6)  # room for 8


def of(tenant: str, number: int, *, n: int = 1, priority: int = 0, weight: float = 1.0) -> Request:
    params = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True, n=n)
    request = make_request(
        number, prompt(9, number), namespace=namespace_of(tenant), priority=priority, tenant=tenant, params=params
    )
    return replace(request, weight=weight)


def flooded(*, steps: int = 0, **changes: int) -> Rig:
    rig = Rig(config=CONFIG)
    rig.submit(*(of("loud", number, **changes) for number in range(8)))
    for _ in range(steps):
        rig.step()
    return rig


def refused(rig: Rig) -> list[int]:
    """Those that ended as overload, in the order of their numbers."""
    ends = {number: rig.finish(number) for number in range(200)}
    return [number for number, end in ends.items() if isinstance(end, Failure) and end.code is FailureCode.OVERLOADED]


def test_the_newest_of_a_flood_give_way_for_another_tenant_up_to_its_share() -> None:
    rig = flooded(steps=1)
    rig.submit(*(of("quiet", 100 + number) for number in range(6)))
    rig.run()
    assert refused(rig) == [4, 5, 6, 7, 104, 105]
    assert "2 running and 6 waiting" in rig.failure(7).message
    rig.assert_nothing_is_held()


def test_the_flood_itself_is_refused() -> None:
    rig = flooded()
    rig.submit(of("loud", 8))
    rig.run()
    assert refused(rig) == [8]


def test_shares_are_by_weight() -> None:
    rig = flooded()
    rig.submit(*(of("heavy", 100 + number, weight=3.0) for number in range(7)))
    rig.run()
    assert refused(rig) == [2, 3, 4, 5, 6, 7, 106]


def test_nobody_gives_way_who_has_begun() -> None:
    rig = Rig(config=replace(CONFIG, max_running=8, max_waiting=0))
    rig.submit(*(of("loud", number) for number in range(8)))
    rig.step()
    rig.submit(of("quiet", 100))
    rig.run()
    assert refused(rig) == [100]


def test_nobody_gives_way_to_a_lower_priority() -> None:
    rig = flooded(priority=1)
    rig.submit(of("quiet", 100), of("quiet", 101, priority=1))
    rig.run()
    assert refused(rig) == [7, 100]


def test_nobody_gives_way_where_that_would_not_be_enough() -> None:
    rig = flooded(steps=1)
    rig.submit(of("quiet", 100, n=4), of("quiet", 101, n=5))
    rig.run()
    assert refused(rig) == [4, 5, 6, 7, 101]
    assert rig.finish(100, 3) is FinishReason.LENGTH


def test_completions_that_are_still_to_come_count() -> None:
    rig = Rig(config=CONFIG)
    rig.submit(of("loud", 0), of("loud", 1, n=7), of("quiet", 100))
    rig.run()
    assert refused(rig) == [0]  # without number 1 its tenant would have less than its share
    assert rig.finish(1, 6) is FinishReason.LENGTH


@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_goes_everybody_has_one_end_and_nothing_is_miscounted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rig = Rig(config=CONFIG)
    sent: dict[int, int] = {}
    for number in range(150):
        n = int(rng.integers(1, 5))
        tenant = str(rng.choice(["a", "a", "a", "b", "c"]))
        weight = {"a": 1.0, "b": 2.5, "c": 0.1}[tenant]
        rig.submit(of(tenant, number, n=n, priority=int(rng.integers(0, 2)), weight=weight))
        sent[number] = n
        if rng.random() < 0.2:
            rig.engine.cancel((0, int(rng.integers(number + 1))), rig.now)
        if rng.random() < 0.4:
            rig.step()
        rig.engine.check()
        assert len(rig.engine._completions) <= 8
    rig.run()
    for number, n in sent.items():
        assert all(rig.finish(number, index) is not None for index in range(n)) or refused_or_cancelled(rig, number)
    rig.assert_nothing_is_held()


def refused_or_cancelled(rig: Rig, number: int) -> bool:
    return isinstance(rig.finish(number), Failure)
