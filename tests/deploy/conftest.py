from collections.abc import Iterator

import pytest

from tests.deploy.observed import Observed, observed_stack


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One stack under load with its Prometheus, for all tests that leave both as they found them.

    Whoever pauses the traffic resumes it. Tests that use it bear the mark `e2e`.
    """
    with observed_stack(tmp_path_factory.mktemp("observed")) as running:
        yield running
