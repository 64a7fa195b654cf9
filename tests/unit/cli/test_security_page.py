"""What docs/security.md tells people to write is a configuration."""

import re
import tomllib

import pytest

from cli.config import config_from
from tests.tools import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.split("\n", 1)[0] for example in EXAMPLES])
def test_an_example_is_a_valid_configuration(example: str) -> None:
    config = config_from(tomllib.loads(example))
    assert config.gateway.tls.cert_file or config.gateway.jwt.enabled or config.worker.tls.client_ca_file
