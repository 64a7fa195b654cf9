"""A folder of native sources that compile in a moment, in the place of the real ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools import require_tool
from worker.native import build, library
from worker.native.library import ABI_VERSION

_FUNCTIONS = [name for name, _, _ in library._SIGNATURES]


def source(abi: int = ABI_VERSION, functions: list[str] = _FUNCTIONS, more: str = "") -> str:
    """A library with the interface of the real one that computes nothing."""
    declared = "".join(f'extern "C" void* {name}() {{ return 0; }}\n' for name in functions)
    return f'extern "C" int rg_abi_version() {{ return {abi}; }}\n{declared}{more}'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Small sources, and an empty place for their libraries."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "api.cpp").write_text(source())
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "lib")
    library.kernels.cache_clear()
    yield folder
    library.kernels.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("CXX", raising=False)
    return require_tool("g++", "install it, for example with `apt-get install g++`")


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[frozenset[str]], None]:
    """Call it with what the processor is to say of itself. Only for libraries that are not called."""

    def says(features: frozenset[str]) -> None:
        monkeypatch.setattr(library, "_processor_features", lambda: features)
        library.kernels.cache_clear()

    return says
