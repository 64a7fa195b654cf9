"""Dockerfiles as lists of instructions."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.tools import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "docker"
FILES = sorted(FOLDER.glob("*.Dockerfile"))


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    words: str  # the rest, on one line
    stage: int


def instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a file, without comments; those before the first FROM are of stage 0."""
    text = "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.lstrip().startswith("#"))
    found: list[Instruction] = []
    stage = 0
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, words = line.strip().partition(" ")
        stage += name == "FROM"
        if name:
            found.append(Instruction(name, words.strip(), stage))
    return found


def of_kind(path: Path, name: str) -> list[Instruction]:
    return [each for each in instructions(path) if each.name == name]


def of_last_stage(path: Path) -> list[Instruction]:
    """Return what the image itself is made of: only this is in it."""
    every = instructions(path)
    return [each for each in every if each.stage == every[-1].stage]


def copied_from_context(path: Path) -> set[str]:
    words = [each.words.split() for each in of_kind(path, "COPY")]
    return {source for each in words if not each[0].startswith("--from=") for source in each[:-1]}


def variables(path: Path) -> dict[str, str]:
    """Return what ARG and ENV name, with values."""
    found: dict[str, str] = {}
    for each in instructions(path):
        if each.name in {"ARG", "ENV"}:
            for pair in each.words.split():
                name, _, value = pair.partition("=")
                found[name] = found.get(name) or value
    return found
