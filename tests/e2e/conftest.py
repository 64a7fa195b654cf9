from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Client, Stack, running_stack
from tests.tools import REPOSITORY

ARGUMENTS = (
    "--set", 'worker.model.dtype="fp32"', "--set", "worker.cache.num_slots=4096",
    "--set", f"worker.lora.adapters.pirate={REPOSITORY}/examples/adapters/pirate",
)  # fmt: skip


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests that leave it as they found it."""
    folder: Path = tmp_path_factory.mktemp("stack")
    with running_stack(folder, ARGUMENTS) as running:
        yield running


@pytest.fixture
def alice(stack: Stack) -> Iterator[Client]:
    client = Client(stack.grpc, stack.keys["demo-a"])
    yield client
    client.close()


@pytest.fixture
def bob(stack: Stack) -> Iterator[Client]:
    client = Client(stack.grpc, stack.keys["demo-b"])
    yield client
    client.close()
