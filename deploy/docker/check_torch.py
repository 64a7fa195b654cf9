"""Fails unless the torch that is installed is of the kind that an image is for.

    python check_torch.py cpu|cuda [FOLDER]

FOLDER is where packages are installed; without it, those of the running Python are looked at. A package index may hand
out a CUDA build where none was asked for, or a package may require one: gigabytes that an image for CPUs never uses.
Reads what packages say of themselves and loads none, so it needs no GPU.
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

_CUDA = re.compile(r"(nvidia|cuda)[-_]|(pytorch[-_])?triton\b", re.IGNORECASE)


def fault(variant: str, installed: Iterable[Distribution]) -> str | None:
    """Return what is wrong with the packages for an image of this variant, or None."""
    found = {distribution.name: distribution for distribution in installed}
    torch = found.get("torch")
    if torch is None:
        return "torch is not installed"
    torch_needs_cuda = any(_CUDA.match(requirement) for requirement in torch.requires or ())
    if variant == "cuda":
        return None if torch_needs_cuda else f"torch {torch.version} is a build for CPUs"
    if torch_needs_cuda:
        return f"torch {torch.version} is a CUDA build; name an index of CPU builds with TORCH_ARGS"
    packages = sorted(name for name in found if _CUDA.match(name))
    return f"packages of CUDA were installed: {', '.join(packages)}" if packages else None


def main() -> None:
    variant, *folder = sys.argv[1:]
    if variant not in {"cpu", "cuda"}:
        sys.exit(f"there is no variant {variant!r}: cpu or cuda")
    if found := fault(variant, distributions(path=folder) if folder else distributions()):
        sys.exit(found)


if __name__ == "__main__":
    main()
