"""The settings of several workers, from what was set for one."""

from typing import Any

import pytest

from cli.config import Tree, config_from, with_free_ports
from cli.validation import ConfigError
from cli.worker_trees import worker_trees
from worker.config import WorkerConfig
from worker.model.memory import DEFAULT_POOL_BYTES


def workers(num_workers: int, tree: Tree | None = None) -> list[WorkerConfig]:
    return [config_from(each).worker for each in worker_trees(tree or {}, num_workers)]


def test_one_worker_is_as_it_was_set() -> None:
    tree: dict[str, Any] = {"worker": {"worker_id": "x", "cache": {"page_size": 4}}}
    assert worker_trees(tree, 1) == [tree]


def test_each_has_a_number_and_ports_of_its_own() -> None:
    made = workers(3)
    assert [each.worker_id for each in made] == ["worker-0", "worker-1", "worker-2"]
    assert [each.listen for each in made] == ["127.0.0.1:50061", "127.0.0.1:50062", "127.0.0.1:50063"]
    assert [each.metrics_listen for each in made] == ["127.0.0.1:9101", "127.0.0.1:9102", "127.0.0.1:9103"]


def test_an_id_that_was_set_is_what_numbers_are_added_to() -> None:
    assert [each.worker_id for each in workers(2, {"worker": {"worker_id": "gpu"}})] == ["gpu-0", "gpu-1"]


def test_free_ports_stay_free_ports() -> None:
    tree: Tree = {}
    with_free_ports(tree)
    assert {each.listen for each in workers(2, tree)} == {"127.0.0.1:0"}


def test_a_port_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"worker\.listen: leaves no port .* 65536"):
        workers(2, {"worker": {"listen": "127.0.0.1:65535"}})


def test_what_one_would_take_of_memory_is_divided() -> None:
    sizes = [each.cache.memory_bytes for each in workers(4)]
    assert all(size is not None and 0 < size <= DEFAULT_POOL_BYTES // 4 for size in sizes)
    # They were asked one after the other, on a machine where others work.
    assert all(each.model.threads is not None and each.model.threads >= 1 for each in workers(4))


@pytest.mark.parametrize("cache", [{"num_slots": 4096}, {"memory_bytes": 1 << 26}])
def test_a_size_that_was_set_is_each_ones(cache: dict[str, int]) -> None:
    assert {(each.cache.num_slots, each.cache.memory_bytes) for each in workers(2, {"worker": {"cache": cache}})} == {
        (cache.get("num_slots"), cache.get("memory_bytes"))
    }


def test_simulated_workers_share_neither_memory_nor_cores() -> None:
    simulated = workers(2, {"worker": {"simulation": {"enabled": True}}})
    assert {(each.cache.memory_bytes, each.model.threads) for each in simulated} == {(None, None)}


def test_nothing_is_written_into_what_was_set() -> None:
    tree: dict[str, Any] = {"worker": {"cache": {}}}
    worker_trees(tree, 2)
    assert tree == {"worker": {"cache": {}}}
