import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Client, Stack, running_stack
from tests.fakes.tiny_tokenizer import CHATML, SPECIAL_TOKENS, tiny_tokenizer, tiny_tokenizer_json
from tests.integration.tiny_models import tiny_model
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


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, which is there at once: for stacks whose answers are not looked at."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama", vocab_size=tiny_tokenizer().get_vocab_size(), num_hidden_layers=6).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL_TOKENS | {"chat_template": CHATML}))
    return folder


@pytest.fixture
def tiny_arguments(tiny_model_folder: Path) -> tuple[str, ...]:
    """Of a stack with that model."""
    return ("--set", f"worker.model.model={tiny_model_folder}", "--set", "worker.cache.num_slots=4096")
