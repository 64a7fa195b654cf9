"""The API definitions and the stubs beside them."""

import subprocess
import sys
from pathlib import Path

from tests.tools import REPOSITORY, require_tool

STUBS = REPOSITORY / "proto" / "radixgate" / "v1"


def test_the_committed_stubs_are_what_the_definitions_generate(tmp_path: Path) -> None:
    make = require_tool("make", "apt-get install make")
    environment = Path(sys.executable).parent.parent
    command = [make, "proto", f"PROTO_OUT={tmp_path}", f"VENV={environment}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    generated = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "radixgate" / "v1").iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in STUBS.glob("*_pb2*.py*")}
    assert sorted(generated) == sorted(committed)
    for name, text in generated.items():
        assert text == committed[name], f"{name} is out of date: make proto"


def test_the_definitions_pass_buf_lint() -> None:
    command = [require_tool("buf", "make install"), "lint", "proto"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
