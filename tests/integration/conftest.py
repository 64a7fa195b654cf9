"""What several files of integration tests share: a fake worker, the real model in fp32, and what `generate` answers."""

from collections.abc import AsyncIterator

import pytest

from tests.exactness import NUM_NEW, NUM_PROMPTS
from tests.fakes.fake_worker import FakeWorker
from tests.reference import Reference, greedy_reference, prompts
from worker.config import ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    async with FakeWorker() as fake:
        yield fake


@pytest.fixture(scope="session")
def fp32_model() -> LoadedModel:
    return load_model(ModelConfig(dtype="fp32", threads=1), SilentProgress())


@pytest.fixture(scope="session")
def reference(fp32_model: LoadedModel) -> list[Reference]:
    """What `generate` answers to different prompts."""
    references = greedy_reference(fp32_model, prompts(NUM_PROMPTS), max_new_tokens=NUM_NEW)
    assert len({tuple(each.prompt_token_ids) for each in references}) == NUM_PROMPTS
    return references
