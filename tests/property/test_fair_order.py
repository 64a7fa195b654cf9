"""What tenants owe each other in the fair order, whatever they ask for: tokens served stay close, weights are kept."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.worker.engine.harness import Rig, make_request
from tests.unit.worker.engine.waiting_sequences import ToldCache, finish, is_ready, namespace_of, waiting
from worker.config import EngineConfig
from worker.engine import Admission
from worker.engine import waiting as lines

CONFIG = EngineConfig(cached_token_cost=0.1, fair_quantum_tokens=300)


@dataclass(frozen=True, slots=True)
class Job:
    """A request for a line alone: what the cache has of it, and how many tokens it puts out of those it might."""

    prompt: int
    cached: int
    outputs: int
    max_new: int
    known: bool  # whether it ignores end tokens, so that its length is known beforehand

    @property
    def cost(self) -> float:
        return self.prompt - self.cached + CONFIG.cached_token_cost * self.cached + self.outputs


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    prompt = draw(st.integers(1, 400))
    outputs = draw(st.integers(1, 100))
    known = draw(st.booleans())
    return Job(
        prompt,
        cached=draw(st.integers(0, prompt - 1)),
        outputs=outputs,
        max_new=outputs if known else draw(st.sampled_from([outputs, 1000, 100_000])),
        known=known,
    )


def serve_in_turn(wanted: dict[str, list[Job]], weights: dict[str, float]) -> list[dict[str, float]]:
    """Serve one request after the other, all of which wait from the beginning on.

    Returns what each tenant has had after each of them, as long as every tenant has more.
    """
    by_order: dict[int, Job] = {}
    cache = ToldCache()
    line = lines.by_name("fair", CONFIG, cache)
    for tenant, its_jobs in wanted.items():
        for job in its_jobs:
            order = len(by_order)
            by_order[order] = job
            cache.tokens[order] = job.cached
            line.push(
                waiting(
                    order,
                    [order] * job.prompt,
                    tenant=tenant,
                    weight=weights[tenant],
                    max_new_tokens=job.max_new,
                    ignore_eos=job.known,
                )
            )
    left = Counter({tenant: len(its_jobs) for tenant, its_jobs in wanted.items()})
    served = dict.fromkeys(wanted, 0.0)
    history = []
    while all(left.values()):
        sequence = next(iter(line.candidates(0.0, is_ready)))
        job = by_order[sequence.order]
        line.start(sequence, job.cached)
        finish(sequence, job.cached, job.outputs)
        line.settle(sequence)
        left[sequence.request.tenant] -= 1
        served[sequence.request.tenant] += job.cost
        history.append(dict(served))
    return history


@settings(max_examples=150)
@given(wanted=st.lists(st.lists(jobs(), min_size=1, max_size=40), min_size=2, max_size=3))
def test_served_tokens_of_waiting_tenants_never_differ_by_more_than_two_of_the_largest_request(
    wanted: list[list[Job]],
) -> None:
    tenants = {f"tenant-{number}": its_jobs for number, its_jobs in enumerate(wanted)}
    largest = max(job.cost for its_jobs in wanted for job in its_jobs)
    for served in serve_in_turn(tenants, dict.fromkeys(tenants, 1.0)):
        assert max(served.values()) - min(served.values()) <= 2 * largest + 1e-6


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_weights_of_three_to_one_give_three_to_one_over_a_long_backlog(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wanted = {tenant: [_random_job(rng) for _ in range(400)] for tenant in ("heavy", "light")}
    served = serve_in_turn(wanted, {"heavy": 3.0, "light": 1.0})[-1]
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.1)


def _random_job(rng: np.random.Generator) -> Job:
    prompt = int(rng.integers(1, 200))
    outputs = int(rng.integers(1, 60))
    return Job(prompt, int(rng.integers(0, prompt)), outputs, max_new=4000, known=bool(rng.integers(2)))


class Backlog:
    """An engine with requests of several tenants, all of which are there from the beginning on."""

    def __init__(self, seed: int, weights: dict[str, float], num_requests: int, page_size: int = 1) -> None:
        rng = np.random.default_rng(seed)
        config = replace(
            CONFIG,
            max_running=int(rng.integers(1, 9)),
            max_step_tokens=int(rng.integers(16, 100)),
            max_chunk_tokens=int(rng.integers(4, 50)),
            contested_prompt_tokens=int(rng.integers(8, 50)),
            min_shared_tokens=int(rng.choice([8, 1000])),
            headroom_tokens=int(rng.integers(1, 20)),
        )
        num_pages = int(rng.integers(130, 600)) // page_size
        self.rig = Rig(num_pages * page_size, page_size, config=config)
        self.tenants = tuple(weights)
        self.num_outputs: dict[int, int] = {}
        self.tenant_of: dict[int, str] = {}
        longest = {tenant: int(rng.choice([8, 30, 60])) for tenant in weights}
        shared = {tenant: rng.integers(0, 50, 60) for tenant in weights}
        for number in range(num_requests * len(weights)):
            tenant = self.tenants[number % len(weights)]
            prompt = rng.integers(0, 50, int(rng.integers(1, longest[tenant] + 1)))
            same = int(rng.integers(0, len(prompt) + 1))
            prompt[:same] = shared[tenant][:same]
            self.num_outputs[number] = int(rng.integers(1, 40))
            self.tenant_of[number] = tenant
            request = make_request(
                number,
                prompt.tolist(),
                max_new_tokens=self.num_outputs[number],
                tenant=tenant,
                namespace=namespace_of(tenant),
            )
            self.rig.submit(replace(request, weight=weights[tenant]))
        self.costs: dict[int, float] = {}  # of those that were started, by number
        self.backlogged = True  # each tenant has some that never started

    def step(self) -> None:
        for output in self.rig.step(check=False):
            if output.admission is not None:
                self._admitted(output.sequence_id[1], output.admission)
        scheduler = self.rig.engine._scheduler
        for sequence in scheduler._running:  # news of an admission may come later
            if sequence.admission is not None:
                self._admitted(sequence.request.sequence_id[1], sequence.admission)
        new = {sequence.request.tenant for sequence in scheduler._line.members() if sequence.admission is None}
        self.backlogged = new == set(self.tenants)

    def _admitted(self, number: int, admission: Admission) -> None:
        cached = CONFIG.cached_token_cost * admission.hit.total
        self.costs[number] = admission.computed_tokens + cached + self.num_outputs[number]

    def served(self) -> dict[str, float]:
        served = dict.fromkeys(self.tenants, 0.0)
        for number, cost in self.costs.items():
            served[self.tenant_of[number]] += cost
        return served


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), num_tenants=st.integers(2, 3), page_size=st.sampled_from([1, 4]))
def test_what_backlogged_tenants_have_been_admitted_with_stays_as_close_with_many_running(
    seed: int, num_tenants: int, page_size: int
) -> None:
    weights = {f"tenant-{number}": 1.0 for number in range(num_tenants)}
    backlog = Backlog(seed, weights, num_requests=25, page_size=page_size)
    histories = []
    while backlog.backlogged:
        backlog.step()
        if backlog.backlogged:
            histories.append(backlog.served())
    backlog.rig.run(check=False)
    largest = max(backlog.costs.values())
    for served in histories:
        assert max(served.values()) - min(served.values()) <= 2 * largest + 1e-6
    backlog.rig.assert_nothing_is_held()


@settings(max_examples=6)
@example(seed=5000)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_engine_with_many_running_keeps_weights_of_three_to_one(seed: int) -> None:
    # As long as it takes for twice the largest request to be less than a tenth of what the light one is served.
    backlog = Backlog(seed, {"heavy": 3.0, "light": 1.0}, num_requests=300)
    served = backlog.served()
    while backlog.backlogged:
        served = backlog.served()
        backlog.step()
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.1)
