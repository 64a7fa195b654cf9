"""The worker's configuration says its bounds in its types."""

from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from hicache.radix import policy
from worker.config import EngineConfig, PolicyName, WorkerConfig

ADAPTER = TypeAdapter(WorkerConfig)


def test_everything_has_a_default() -> None:
    assert ADAPTER.validate_python({}) == WorkerConfig()


@pytest.mark.parametrize(
    ("given", "path", "limit"),
    [
        ({"cache": {"num_slots": 0}}, ("cache", "num_slots"), "greater than or equal to 1"),
        ({"cache": {"page_size": -1}}, ("cache", "page_size"), "greater than or equal to 1"),
        ({"cache": {"policy": "random"}}, ("cache", "policy"), "'lru'"),
        ({"cache": {"num_slots": 8, "page_size": 16}}, ("cache",), "page_size (16)"),
        ({"engine": {"max_running": 0}}, ("engine", "max_running"), "greater than or equal to 1"),
        ({"engine": {"order": "lifo"}}, ("engine", "order"), "'fcfs'"),
        ({"engine": {"max_step_tokens": 8}}, ("engine",), "max_running (32)"),
        ({"model": {"dtype": "fp8"}}, ("model", "dtype"), "'bf16'"),
        ({"model": {"threads": 0}}, ("model", "threads"), "greater than or equal to 1"),
        ({"worker_id": ""}, ("worker_id",), "at least 1"),
    ],
)
def test_what_is_out_of_bounds_is_named_with_its_path_and_limit(
    given: dict[str, object], path: tuple[str, ...], limit: str
) -> None:
    with pytest.raises(ValidationError) as error:
        ADAPTER.validate_python(given)
    [problem] = error.value.errors()
    assert problem["loc"] == path
    assert limit in problem["msg"]


def test_a_step_must_have_room_for_every_running_sequence() -> None:
    with pytest.raises(ValueError, match="at least max_running"):
        EngineConfig(max_step_tokens=4, max_running=5)


def test_every_eviction_policy_can_be_configured() -> None:
    assert set(get_args(PolicyName)) == set(policy.NAMES)
