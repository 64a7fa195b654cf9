"""Adapters as their operator and their tenants meet them: commands, and answers of the real model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.stack import Stack
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

TAGGER = str(REPOSITORY / "examples" / "adapters" / "tagger")
TAGS = {"topic": "travel", "kind": "question", "mood": "neutral"}


def radixgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def chat(stack: Stack, tenant: str, adapter: str, message: str) -> subprocess.CompletedProcess[str]:
    to = ("--target", stack.grpc, "--key", stack.keys[tenant])
    return radixgate("chat", *to, "--adapter", adapter, "--max-new-tokens", "40", "--json", message)


def answer(stack: Stack, tenant: str, adapter: str, message: str) -> str:
    done = chat(stack, tenant, adapter, message)
    assert done.returncode == 0, done.stderr
    text: str = json.loads(done.stdout)["text"]
    return text


@contextmanager
def loaded(stack: Stack, name: str, path: str, *tenants: str) -> Iterator[None]:
    """Load an adapter for as long as the block lasts."""
    allowed = [word for tenant in tenants for word in ("--tenant", tenant)]
    done = radixgate("adapter", "load", name, path, "--worker", stack.worker, *allowed)
    assert done.returncode == 0, done.stderr
    yield
    done = radixgate("adapter", "unload", name, "--worker", stack.worker, "--json", *allowed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed_sequences"] == 0


def test_an_adapter_of_the_configuration_answers_from_the_start(stack: Stack) -> None:
    assert answer(stack, "demo-a", "pirate", "What is a bicycle?").startswith("Arr, matey! A bicycle be ")


def test_an_adapter_comes_and_goes_while_the_worker_runs_and_is_there_for_its_tenant_only(stack: Stack) -> None:
    with loaded(stack, "tagger", TAGGER, "demo-a"):
        assert json.loads(answer(stack, "demo-a", "tagger", "When does the plane land?")) == TAGS
        refused = chat(stack, "demo-b", "tagger", "When does the plane land?")
        assert refused.returncode == 1
        assert "NOT_FOUND: adapter 'tagger' does not exist" in refused.stderr
        listed = json.loads(radixgate("adapter", "list", "--worker", stack.worker, "--json").stdout)
        assert [(adapter["name"], adapter["tenants"]) for adapter in listed] == [("pirate", []), ("tagger", ["demo-a"])]
        assert listed[1]["resident"]
    gone = chat(stack, "demo-a", "tagger", "When does the plane land?")
    assert gone.returncode == 1
    assert "NOT_FOUND: adapter 'tagger' does not exist" in gone.stderr


def test_what_is_no_adapter_is_refused_by_name(stack: Stack) -> None:
    done = radixgate("adapter", "load", "nothing", str(REPOSITORY / "docs"), "--worker", stack.worker)
    assert done.returncode == 1
    assert "INVALID_ARGUMENT: path: adapter_config.json: missing in" in done.stderr
