"""What the Dockerfiles promise, read from them. Whether an image is what they say: test_images_built.py."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.dockerfiles import (
    FILES,
    FOLDER,
    copied_from_context,
    instructions,
    of_kind,
    of_last_stage,
    variables,
)
from tests.tools import REPOSITORY, require_tool

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
PACKAGES = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_an_image_for_each_process() -> None:
    assert [path.stem for path in FILES] == ["gateway", "worker"]


def test_hadolint_finds_nothing() -> None:
    hadolint = require_tool("hadolint", "run: make install")
    command = [hadolint, "-c", str(FOLDER / "hadolint.yaml"), *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_file
def test_nobody_runs_as_root(path: Path) -> None:
    users = [each.words for each in of_last_stage(path) if each.name == "USER"]
    assert users == ["65532:65532"]


@each_file
def test_the_process_itself_gets_the_signal_that_ends_it(path: Path) -> None:
    last = {each.name: each.words for each in of_last_stage(path)}
    assert json.loads(last["ENTRYPOINT"]) == ["radixgate"]
    command = path.stem.partition(".")[0]
    assert json.loads(last["CMD"]) == [command, "--config", "/etc/radixgate/radixgate.toml"]
    assert last["STOPSIGNAL"] == "SIGTERM"


@each_file
def test_the_base_can_be_chosen_and_is_pinned(path: Path) -> None:
    assert {each.words.split()[0] for each in of_kind(path, "FROM")} == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", variables(path)["PYTHON_IMAGE"])


@each_file
def test_what_builds_is_not_in_the_image(path: Path) -> None:
    last = of_last_stage(path)
    copied = [each.words for each in last if each.name == "COPY"]
    assert copied == ["--from=builder /opt/radixgate /opt/radixgate"]
    assert "g++" not in " ".join(each.words for each in last)
    installed = re.findall(r"--without-pip (\S+)", " ".join(each.words for each in instructions(path)))
    assert installed == ["/opt/radixgate"]


@each_file
def test_no_secret_travels_as_argument_or_variable(path: Path) -> None:
    secret = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY|AUTH", re.IGNORECASE)
    assert [name for name in variables(path) if secret.search(name)] == []


@each_file
def test_no_place_to_install_from_is_built_in(path: Path) -> None:
    text = path.read_text("utf-8")
    urls = re.findall(r"\w+://[^\s\"']+", text)
    assert set(urls) == {"https://github.com/radixgate/radixgate"}
    assert not re.search(r"--(extra-)?index-url [^U]|--trusted-host|_proxy", text)


@each_file
def test_whatever_installs_takes_its_settings_from_secrets_and_its_versions_from_the_constraints(path: Path) -> None:
    for each in of_kind(path, "RUN"):
        parts = [part.strip() for part in each.words.split("&&")]
        fetching = [
            part for part in parts if re.search(r"(^|[ /])pip .*\binstall\b", part) and "--no-index" not in part
        ]
        if fetching:
            assert "--mount=type=secret,id=pip.conf" in each.words
            assert all("-c constraints.txt" in part for part in fetching), fetching
        if "apt-get install" in each.words:
            assert "--mount=type=secret,id=apt.conf" in each.words
            assert "--no-install-recommends" in each.words
            assert "/var/lib/apt/lists/*" in each.words


@each_file
def test_every_package_of_ours_is_copied(path: Path) -> None:
    copied = copied_from_context(path)
    assert copied >= PACKAGES, f"a package of pyproject.toml is not copied by {path.name}"
    wanted = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "constraints.txt"}
    assert wanted <= copied
    ours = {name for name in copied if not name.startswith("deploy/docker/") and "/native" not in name}
    assert ours == PACKAGES | wanted | {"hatch_build.py"}


def test_the_context_of_a_build_is_what_is_copied_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = set().union(*(copied_from_context(path) for path in FILES))
    assert allowed == copied - {"worker/native"}
    assert {"worker/native/lib", "**/__pycache__"} <= set(rules[len(allowed) :])


# ---------------------------------------------------------------------------------------- what the Dockerfiles run


def script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", "-S", str(FOLDER / name), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_an_image_gets_what_its_extras_require() -> None:
    done = script("requirements.py", "gateway", "otel")
    extras = PROJECT["project"]["optional-dependencies"]
    assert done.stdout.splitlines() == PROJECT["project"]["dependencies"] + extras["gateway"] + extras["otel"]
    assert "torch" not in done.stdout


def test_an_extra_that_does_not_exist_ends_the_build() -> None:
    assert script("requirements.py", "gatewy").returncode != 0


def installed(folder: Path, **packages: tuple[str, ...]) -> str:
    """Make a folder in which these packages are installed, with what they require."""
    for name, requires in packages.items():
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir()
        lines = [f"Requires-Dist: {each}" for each in requires]
        (information / "METADATA").write_text("\n".join(["Name: " + name, "Version: 1.0", *lines, ""]), "utf-8")
    return str(folder)


CPU_TORCH = ("filelock", "sympy>=1.13.3")
CUDA_TORCH = (*CPU_TORCH, "nvidia-cublas==13.1; platform_system == 'Linux'", "triton==3.5; extra == 'x'")


@pytest.mark.parametrize(
    ("variant", "packages", "fault"),
    [
        ("cpu", {"torch": CPU_TORCH, "numpy": ()}, None),
        ("cpu", {"torch": CUDA_TORCH}, "torch 1.0 is a CUDA build; name an index of CPU builds with TORCH_ARGS"),
        ("cpu", {"torch": CPU_TORCH, "nvidia_nccl": ()}, "packages of CUDA were installed: nvidia_nccl"),
        ("cpu", {"torch": CPU_TORCH, "triton": ()}, "packages of CUDA were installed: triton"),
        ("cpu", {"numpy": ()}, "torch is not installed"),
        ("cuda", {"torch": CUDA_TORCH, "nvidia_cublas": ()}, None),
        ("cuda", {"torch": CPU_TORCH}, "torch 1.0 is a build for CPUs"),
        ("gpu", {"torch": CUDA_TORCH}, "there is no variant 'gpu': cpu or cuda"),
    ],
)
def test_a_torch_of_the_wrong_kind_ends_the_build(
    tmp_path: Path, variant: str, packages: dict[str, tuple[str, ...]], fault: str | None
) -> None:
    done = script("check_torch.py", variant, installed(tmp_path, **packages))
    assert (done.returncode != 0) == (fault is not None)
    assert done.stderr.strip() == (fault or "")
