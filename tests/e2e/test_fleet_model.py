"""A worker of a real model is killed in the middle of answers, and they are what `transformers` generates."""

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.fleet_client import Outcome, tokens_request
from radixgate.v1 import inference_pb2
from tests.e2e.fleet import (
    AT_TOKEN,
    Fleet,
    FleetPlan,
    assert_as_undisturbed,
    client_of,
    complete,
    moves,
    running_fleet,
    streams_with,
    undisturbed,
)
from tests.exactness import TIE
from tests.reference import Reference, greedy_reference, prompts
from worker.config import ModelConfig
from worker.model.loading import load_model
from worker.model.progress import SilentProgress

pytestmark = [pytest.mark.e2e, pytest.mark.live, pytest.mark.model, pytest.mark.timeout(600)]

NUM_GREEDY = 8
NUM_SEEDED = 8
NUM_NEW = 40
SETTINGS = (
    'worker.model.dtype="fp32"',
    "worker.model.threads=1",
    "worker.cache.num_slots=8192",
    "worker.engine.max_running=32",
)


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    model = load_model(ModelConfig(dtype="fp32", threads=1), SilentProgress())
    return greedy_reference(model, prompts(NUM_GREEDY + NUM_SEEDED), max_new_tokens=NUM_NEW)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    plan = FleetPlan(2, 1, SETTINGS, simulate=False)
    with running_fleet(tmp_path_factory.mktemp("model"), plan) as running:
        yield running


def asked(references: Sequence[Reference]) -> list[inference_pb2.GenerateRequest]:
    """Return requests of which the first ones are greedy, and the others have seeds."""
    seeds = [None] * NUM_GREEDY + list(range(1, NUM_SEEDED + 1))
    return [
        tokens_request(reference.prompt_token_ids, NUM_NEW, seed=seed)
        for reference, seed in zip(references, seeds, strict=True)
    ]


def certain(reference: Reference) -> list[int]:
    """Return what is generated before the first near tie, where two correct ways to add up may part."""
    ties = [position for position, margin in enumerate(reference.margins) if margin < TIE]
    return list(reference.token_ids[: ties[0] if ties else None])


def assert_as_generated(outcomes: Sequence[Outcome], references: Sequence[Reference]) -> None:
    for outcome, reference in zip(outcomes, references, strict=True):
        wanted = certain(reference)
        assert outcome.token_ids[0][: len(wanted)] == wanted


async def test_answers_of_a_killed_worker_are_those_of_generate_and_of_an_undisturbed_run(
    fleet: Fleet, references: list[Reference]
) -> None:
    requests = asked(references)
    reference = await undisturbed(fleet, requests)
    assert not any(outcome.simulated for outcome in reference)
    assert len([each for each in references[:NUM_GREEDY] if len(certain(each)) > 2 * AT_TOKEN]) > NUM_GREEDY / 2
    async with client_of(fleet) as client:
        outcomes = await streams_with(client, requests, AT_TOKEN, fleet.workers[1].kill)
    assert all(complete(outcome, NUM_NEW) for outcome in outcomes)
    assert_as_undisturbed(outcomes, reference)
    assert_as_generated(outcomes[:NUM_GREEDY], references[:NUM_GREEDY])
    assert moves(fleet) > 0
