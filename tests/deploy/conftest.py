from collections.abc import Iterator

import pytest

from tests.deploy.observed import Observed, observed_stack


@pytest.fixture(scope="session")
def observed_by_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    with observed_stack(tmp_path_factory.mktemp("observed")) as running:
        yield running


@pytest.fixture(scope="module")
def observed(observed_by_all: Observed) -> Iterator[Observed]:
    """One stack under load with its Prometheus, for all tests that leave both as they found them.

    Whoever pauses the traffic resumes it. Behind a file it is paused, so that it takes no time from those that follow.
    Tests that use it bear the mark `e2e`.
    """
    observed_by_all.traffic.resume()
    yield observed_by_all
    observed_by_all.traffic.pause()
