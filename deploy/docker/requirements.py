"""Prints what this package and some of its extras require, one requirement a line.

    python requirements.py [EXTRA...]

So that an image has what we depend on in a layer of its own, which a change of our code leaves alone. Runs before
anything is installed, so it knows the standard library only.
"""

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    """Return the requirements of the `pyproject.toml` in a folder. Raises KeyError for an extra that there is not."""
    described = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    optional = described["optional-dependencies"]
    return [*described["dependencies"], *(text for extra in extras for text in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path.cwd(), sys.argv[1:])))
