"""What is true of the repository as a whole: sizes, paths, versions, commands."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools import REPOSITORY, missing, require_tool

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


def tracked_files(*patterns: str) -> list[Path]:
    if not (REPOSITORY / ".git").exists():
        missing("no git repository here; run the tests in a clone")
    git = require_tool("git", "apt-get install git")
    # A container's user may not own the clone.
    command = [git, "-c", f"safe.directory={REPOSITORY}", "ls-files", "-z", "--", *patterns]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.exists()]


def our_code() -> list[Path]:
    return [path for path in tracked_files("*.py") if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))]


def test_no_file_is_too_long_to_read() -> None:
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text("utf-8").splitlines()) for path in our_code()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_too_long_to_read() -> None:
    too_long = {}
    for path in our_code():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    too_long[f"{path.relative_to(REPOSITORY)}:{node.name}"] = lines
    assert too_long == {}


def test_no_import_stands_inside_a_function() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{inner.lineno}"
        for path in our_code()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert found == []


def test_no_path_of_somebodys_machine_is_in_a_tracked_file() -> None:
    somebodys = re.compile(r"(?<![\w.$}~-])/(?:work|farm|root|home|Users)/\w")
    found = []
    for path in tracked_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if somebodys.search(line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_no_lock_file_names_a_registry() -> None:
    for path in tracked_files("*package-lock.json", "constraints.txt"):
        assert "://" not in re.sub(r'"url": "[^"]*"', "", path.read_text("utf-8")), path


def pinned() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements}


def declared() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    texts = [
        *project["dependencies"],
        *(text for extra, texts in optional.items() if extra != "cuda" for text in texts),
    ]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "radixgate"]


@pytest.mark.parametrize("requirement", declared(), ids=lambda requirement: requirement.name)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(requirement: Requirement) -> None:
    version = pinned()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True)


def test_the_readme_names_the_two_commands_and_make_knows_them() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"make serve", "make test"} <= set(re.findall(r"^(make \w+)$", readme, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b(?=`|$)", readme, re.MULTILINE)) <= targets


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert re.search(r"^make test\b", script.read_text("utf-8"), re.MULTILINE)
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
