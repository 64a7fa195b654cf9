"""What every test can rely on: quiet thread pools, hypothesis profiles, a Redis server."""

import os

# Two test processes on two cores: a thread pool each would only make them fight. Set before numpy or torch load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures_redis"]

settings.register_profile(
    "default",
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes and sockets want the machine to themselves: `e2e` and `live` imply `alone`."""
    for item in items:
        if item.get_closest_marker("e2e") or item.get_closest_marker("live"):
            item.add_marker(pytest.mark.alone)
