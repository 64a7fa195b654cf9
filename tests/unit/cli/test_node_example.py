import subprocess

import pytest

from tests.tools import REPOSITORY, require_path, require_tool


@pytest.mark.parametrize("value", ["many", "0", "1.5", ""])
def test_the_node_client_refuses_a_length_that_is_none(value: str) -> None:
    node = require_tool("node", "apt-get install nodejs npm, then make install")
    folder = REPOSITORY / "examples" / "node"
    require_path(folder / "node_modules" / "@grpc" / "grpc-js", "npm ci in examples/node, or make install")
    command = [node, str(folder / "chat.mjs"), "--key", "k", "--max-new-tokens", value, "Hello!"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f'--max-new-tokens must be a whole number from 1, not "{value}"\n'
