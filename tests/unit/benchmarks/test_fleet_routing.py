"""Fleets in virtual time: where requests go when real caches, views, index and score meet load of different kinds."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.fleet_model import ModelFleet, ModelWorker, Request, WorkerModel
from gateway.routing.cache_aware import CacheAware
from hicache.keys import Int32Array

MODEL = WorkerModel(device_slots=1 << 16, prefill_tokens_per_s=10_000.0)


def fleet(
    num_workers: int = 4, model: WorkerModel = MODEL, num_gateways: int = 1, speeds: Sequence[float] = ()
) -> ModelFleet:
    return ModelFleet(
        model, num_workers, lambda pages: CacheAware(pages.index), num_gateways=num_gateways, speeds=speeds
    )


def run(requests: Sequence[Request], **setting: object) -> ModelFleet:
    ran = fleet(**setting)  # type: ignore[arg-type]
    ran.run(iter(requests))
    return ran


class Tokens:
    """Tokens that are like no others."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, length: int) -> Int32Array:
        self._next += length
        return np.arange(self._next - length, self._next, dtype=np.int32)


def unrelated(number: int, every_s: float, tokens: Tokens, length: int = 600) -> list[Request]:
    return [Request(i * every_s, tokens(length)) for i in range(number)]


def conversations(
    number: int, turns: int, tokens: Tokens, *, every_s: float, first: int = 2000, further: int = 300, output: int = 1
) -> list[Request]:
    """Turn by turn, each conversation once in a turn, in an order that is another one each time."""
    random = np.random.default_rng(0)
    texts = [tokens(first) for _ in range(number)]
    requests: list[Request] = []
    for _ in range(turns):
        for i in random.permutation(number):
            requests.append(Request(len(requests) * every_s, texts[i], output))
            texts[i] = np.concatenate([texts[i], tokens(further)])
    return requests


def max_over_mean(values: Sequence[float]) -> float:
    return max(values) * len(values) / sum(values)


def computed(ran: ModelFleet) -> list[float]:
    return [float(worker.tally.computed_tokens) for worker in ran.workers]


def hit_rate(ran: ModelFleet) -> float:
    tallies = [worker.tally for worker in ran.workers]
    return 1 - sum(each.computed_tokens for each in tallies) / sum(each.prompt_tokens for each in tallies)


def right(ran: ModelFleet) -> float:
    forecasts = [gateway.forecasts for gateway in ran.gateways]
    return sum(each.right for each in forecasts) / sum(each.right + each.over + each.under for each in forecasts)


def test_unrelated_prompts_one_at_a_time_are_spread_over_idle_workers() -> None:
    ran = run(unrelated(100, 5.0, Tokens()))
    assert max(worker.tally.requests for worker in ran.workers) <= 40
    assert min(worker.tally.requests for worker in ran.workers) >= 15


def test_prompts_of_different_length_one_at_a_time_are_spread_by_what_they_cost() -> None:
    tokens, random = Tokens(), np.random.default_rng(1)
    requests = [Request(5.0 * i, tokens(int(length))) for i, length in enumerate(random.integers(50, 6000, 120))]
    assert max_over_mean(computed(run(requests))) <= 1.1


@pytest.mark.parametrize("every_s", [0.02, 0.5])
def test_a_slow_worker_computes_no_more_than_its_share(every_s: float) -> None:
    ran = run(unrelated(300, every_s, Tokens()), speeds=[1.0, 1.0, 0.25, 1.0])
    assert computed(ran)[2] <= sum(computed(ran)) * 0.25 / 3.25 * 1.3


@pytest.mark.parametrize("every_s", [0.02, 1.0])
@pytest.mark.parametrize(("shared", "settled"), [(500, 0), (6000, 200)])
def test_a_beginning_that_all_prompts_share_makes_no_worker_hot(shared: int, settled: int, every_s: float) -> None:
    """A long one is worth a copy at each worker once enough have come for it."""
    tokens = Tokens()
    system = tokens(shared)
    requests = [Request(i * every_s, np.concatenate([system, tokens(200)])) for i in range(600)]
    ran, before = fleet(), Counter[str]()

    def each(number: int) -> None:
        if number == settled:
            before.update({worker.name: worker.tally.requests for worker in ran.workers})

    ran.run(iter(requests), each)
    assert max_over_mean([worker.tally.requests - before[worker.name] for worker in ran.workers]) <= 1.1
    assert sum(computed(ran)) <= 600 * (200 + MODEL.page_size) + 4 * shared


def test_conversations_stay_with_what_is_cached_of_them() -> None:
    requests = conversations(24, 6, Tokens(), every_s=0.05)
    ran = run(requests)
    new = sum(len(each.prompt) for each in requests[:24]) + 24 * 5 * 300
    assert sum(computed(ran)) <= 1.03 * new
    assert max_over_mean(computed(ran)) <= 1.1
    assert right(ran) >= 0.98


def test_conversations_that_only_the_host_still_has_stay_with_it() -> None:
    model = WorkerModel(device_slots=1 << 14, host_slots=1 << 16, prefill_tokens_per_s=10_000.0)
    requests = conversations(40, 5, Tokens(), every_s=0.05)  # 128k tokens at the end; devices have 64k, hosts 256k
    ran = run(requests, model=model)
    new = sum(len(each.prompt) for each in requests[:40]) + 40 * 4 * 300
    assert sum(computed(ran)) <= 1.05 * new
    assert sum(worker.tally.host_tokens for worker in ran.workers) > 0.2 * sum(len(each.prompt) for each in requests)


def test_a_burst_behind_one_beginning_is_shared_among_idle_workers() -> None:
    tokens = Tokens()
    document = tokens(6000)
    first = Request(0.0, document)
    burst = [Request(10.0 + i * 0.001, np.concatenate([document, tokens(500)])) for i in range(100)]
    ran = run([first, *burst])
    assert max(worker.tally.requests for worker in ran.workers) <= 50
    assert max(max(worker.tally.first_token_s) for worker in ran.workers) < 100 * 0.05 / 2


def test_two_gateways_hit_what_one_hits_and_keep_work_even() -> None:
    requests = conversations(24, 6, Tokens(), every_s=0.05, output=40)
    one, two = run(requests), run(requests, num_gateways=2)
    assert hit_rate(two) >= hit_rate(one) - 0.02
    assert right(two) >= 0.98
    assert max_over_mean([worker.sequence_seconds for worker in two.workers]) < 1.2


def test_what_gateways_know_is_what_caches_hold() -> None:
    ran = run(conversations(24, 4, Tokens(), every_s=0.05), num_gateways=2)
    for gateway in ran.gateways:
        assert (gateway.forecasts.disagreed, gateway.forecasts.snapshots) == (0, 0)
        assert gateway.forecasts.agreed > 50
        gateway.pages.index.check()


def test_a_worker_that_joins_gets_its_share_soon_and_is_not_flooded() -> None:
    tokens = Tokens()
    requests = unrelated(400, 0.1, tokens)
    ran = fleet(3)
    late = ModelWorker("late", MODEL, ran.agenda)

    def each(number: int) -> None:
        if number == 200:
            ran.gateways[0].connect(late)
        served.append(late.tally.requests)

    served: list[int] = []
    ran.run(iter(requests), each)
    in_40 = [served[i + 40] - served[i] for i in range(205, 355)]
    assert min(in_40) >= 10
    assert max(in_40) <= 25


def test_the_same_requests_go_the_same_way_each_time() -> None:
    def served() -> Counter[str]:
        ran = run(conversations(12, 3, Tokens(), every_s=0.05), num_gateways=2)
        return Counter({worker.name: worker.tally.computed_tokens for worker in ran.workers})

    assert served() == served()
