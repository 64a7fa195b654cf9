"""Compiles the native kernels, once for each kind of processor that they are written for.

    python -m worker.native.build

Runs when the package is installed, takes some seconds, and needs a C++ compiler that knows OpenMP; without one the
worker computes with torch. Nothing is compiled when a worker runs. Knows compilers and files, no kernels: a library's
name holds a digest of the sources it was made from, so that no other is ever loaded.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
LIBRARIES = Path(__file__).parent / "lib"
COMPILE_TIMEOUT_S = 300.0
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wno-maybe-uninitialized",
)
_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of processor: what the compiler is told, and what the processor must say of itself (/proc/cpuinfo)."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# The best first.
_VARIANTS = {
    "x86_64": (
        Variant("avx512-bf16", ("-march=x86-64-v4", "-mavx512bf16"), _V4 | {"avx512_bf16"}),
        Variant("avx512", ("-march=x86-64-v4",), _V4),
        Variant("avx2", ("-march=x86-64-v3",), _V3),
    ),
    "aarch64": (Variant("armv8", ("-march=armv8-a",)),),
}


class BuildError(Exception):
    """The kernels could not be compiled; the message says why."""


def variants(machine: str | None = None) -> tuple[Variant, ...]:
    """Return the kinds of processor there are of this architecture, the best first."""
    return _VARIANTS.get(machine or platform.machine(), ())


def library_path(variant: Variant) -> Path:
    """Where the library for `variant` lies, or would lie, that fits these sources."""
    return LIBRARIES / f"radixgate-{variant.name}-{_digest(variant)}.so"


def _digest(variant: Variant) -> str:
    """Of all that a library depends on, but for the compiler."""
    digest = hashlib.blake2b(" ".join((*_FLAGS, *variant.flags)).encode(), digest_size=6)
    for path in sorted(SOURCES.iterdir()):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def build_all() -> list[Path]:
    """Compile what is missing and remove what older sources left; return all libraries.

    Raises BuildError if there is no compiler, if it compiles none of them, or if there is no place for them.
    """
    wanted = {variant: library_path(variant) for variant in variants()}
    missing = [variant for variant, path in wanted.items() if not path.exists()]
    if missing:
        compiler = _compiler()
        try:
            LIBRARIES.mkdir(exist_ok=True)
        except OSError as error:
            raise BuildError(f"no place for libraries: {error}") from error
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            failures = list(pool.map(lambda variant: _compile(compiler, variant, wanted[variant]), missing))
        if not any(path.exists() for path in wanted.values()):
            raise BuildError("; ".join(failure for failure in failures if failure))
    _remove_all_but(wanted.values())
    return [path for path in wanted.values() if path.exists()]


def _remove_all_but(wanted: Collection[Path]) -> None:
    """What cannot be removed, or somebody else removes, does no harm: it is never loaded."""
    for path in LIBRARIES.glob("*.so"):
        if path not in wanted:
            with suppress(OSError):
                path.unlink()


def _compiler() -> Sequence[str]:
    for words in (shlex.split(os.environ.get("CXX", "")), *([name] for name in _COMPILERS)):
        found = shutil.which(words[0]) if words else None
        if found:
            return (found, *words[1:])
    raise BuildError(f"no C++ compiler found: none of {', '.join(_COMPILERS)} is on the PATH, and CXX names none")


def _compile(compiler: Sequence[str], variant: Variant, target: Path) -> str | None:
    """Return what went wrong, if anything did. The library appears at once and whole."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [*compiler, *_FLAGS, *variant.flags, "-o", str(made), str(SOURCES / "api.cpp")]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
            made.replace(target)
    except (subprocess.SubprocessError, OSError) as error:
        output = getattr(error, "stderr", None) or str(error)
        return f"{variant.name}: {str(output).strip()[-2000:]}"
    return None


def main() -> None:
    try:
        libraries = build_all()
    except BuildError as error:
        print(f"native kernels are left out, the worker will compute with torch: {error}", file=sys.stderr)
        return
    print("native kernels:", ", ".join(path.name for path in libraries) or "none for this architecture")
    left_out = [variant.name for variant in variants() if library_path(variant) not in libraries]
    if left_out:
        print(f"this compiler makes none for {', '.join(left_out)}: install a newer one", file=sys.stderr)


if __name__ == "__main__":
    main()
