"""Which library is loaded, and what is said where none is."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.native_kernels import RUNNABLE, require_kernels
from tests.unit.worker.native.conftest import source
from worker.native import build, library
from worker.native.build import build_all, library_path, variants
from worker.native.library import NativeError, NumberFormat, kernels, load, runnable_variants, why_no_kernels

pytestmark = pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")
Says = Callable[[frozenset[str]], None]


def test_the_best_variant_that_the_processor_can_run_is_loaded(sources: Path, compiler: str) -> None:
    build_all()
    found = kernels()
    assert found is not None
    assert found.variant == RUNNABLE[0]
    assert why_no_kernels() is None


def test_a_processor_that_lacks_something_gets_the_next_variant(sources: Path, compiler: str, processor: Says) -> None:
    build_all()
    for variant in variants():
        processor(variant.needs | {"fpu"})
        found = kernels()
        assert found is not None
        assert found.variant == variant
    for flag in variants()[-1].needs:
        processor(variants()[0].needs - {flag})
        assert kernels() is None
        assert why_no_kernels() == "none of those compiled runs on this processor"


def test_a_processor_that_says_nothing_gets_what_needs_nothing(sources: Path, processor: Says) -> None:
    processor(frozenset())
    assert [variant.name for variant in runnable_variants()] == [v.name for v in variants() if not v.needs]


def test_a_variant_that_was_not_compiled_is_passed_over(sources: Path, compiler: str) -> None:
    if len(RUNNABLE) < 2:
        pytest.skip("there is only one kind of processor here")
    build_all()
    library_path(RUNNABLE[0]).unlink()
    found = kernels()
    assert found is not None
    assert found.variant == RUNNABLE[1]


def test_nothing_compiled_is_told_with_what_to_do(sources: Path) -> None:
    assert kernels() is None
    reason = why_no_kernels()
    assert reason == "not compiled from these sources: with a C++ compiler, python -m worker.native.build does"


def test_an_architecture_without_kernels_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    assert kernels() is None
    assert why_no_kernels() == "there are none for vax"


def test_a_library_of_other_sources_is_never_loaded(sources: Path, compiler: str) -> None:
    build_all()
    (sources / "api.cpp").write_text(source(more="// newer\n"))
    assert kernels() is None
    assert "not compiled from these sources" in (why_no_kernels() or "")


@pytest.mark.parametrize("abi", [0, library.ABI_VERSION + 1])
def test_a_library_with_another_interface_is_refused(sources: Path, compiler: str, abi: int) -> None:
    (sources / "api.cpp").write_text(source(abi=abi))
    build_all()
    assert kernels() is None
    assert "they cannot be loaded: radixgate-" in (why_no_kernels() or "")
    assert "has another interface than this package" in (why_no_kernels() or "")


def test_a_library_that_lacks_a_function_is_refused(sources: Path, compiler: str) -> None:
    (sources / "api.cpp").write_text(source(functions=["rg_panel"]))
    build_all()
    assert load(RUNNABLE[0]) is None
    assert "has another interface" in (why_no_kernels() or "")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library at all" * 1000])
def test_a_damaged_library_is_refused_with_the_reason(sources: Path, content: bytes) -> None:
    build.LIBRARIES.mkdir()
    library_path(RUNNABLE[0]).write_bytes(content)
    assert kernels() is None
    assert "they cannot be loaded: " in (why_no_kernels() or "")
    assert library_path(RUNNABLE[0]).name in (why_no_kernels() or "")


@pytest.mark.parametrize("missing", [1, 1_000, 8_000])
def test_a_library_that_lacks_its_end_is_refused(sources: Path, compiler: str, missing: int) -> None:
    """The system would load it, and end the process when it reads what is missing."""
    build_all()
    for variant in RUNNABLE:
        path = library_path(variant)
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:-missing])
    assert kernels() is None
    assert f"{library_path(RUNNABLE[0]).name} is cut short" in (why_no_kernels() or "")


def test_a_better_library_that_is_damaged_leaves_the_next(sources: Path, compiler: str) -> None:
    if len(RUNNABLE) < 2:
        pytest.skip("there is only one kind of processor here")
    build_all()
    library_path(RUNNABLE[0]).write_bytes(b"cut")
    found = kernels()
    assert found is not None
    assert found.variant == RUNNABLE[1]


def test_a_function_that_finds_no_memory_is_an_error(sources: Path, compiler: str) -> None:
    """These functions return null, as the real ones do where there is no memory."""
    build_all()
    native = load(RUNNABLE[0])
    assert native is not None
    with pytest.raises(NativeError, match=r"no memory for weights \[2, 4\]"):
        native.pack(NumberFormat.FLOAT32, np.zeros(2, np.uint64), 4, 1)
    with pytest.raises(NativeError, match="no memory for attention"):
        native.attention_space()


def test_what_native_code_made_is_freed_once_with_its_object() -> None:
    freed: list[int] = []
    handle = library.Handle(17, freed.append, "a thing")
    assert freed == []
    del handle
    assert freed == [17]


def test_nothing_is_freed_at_the_end_of_the_process_under_a_thread_that_still_computes() -> None:
    """A forward pass that doesn't return in time is left behind on its thread; freed memory would crash it."""
    program = "from worker.native.library import Handle\nthing = Handle(17, print, 'a thing')\nprint('end')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["end"]


def test_the_real_library_says_which_numbers_it_has() -> None:
    for variant in RUNNABLE:
        native = require_kernels(variant)
        assert native.has_format(NumberFormat.FLOAT32)
        assert native.has_format(NumberFormat.BFLOAT16) == (variant.name == "avx512-bf16")
        assert native.panel in {8, 16, 32}


def test_a_copied_installation_finds_its_library(
    sources: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names depend on contents, never on places or times: a wheel unpacked elsewhere fits."""
    build_all()
    shutil.copytree(sources, tmp_path / "elsewhere" / "src")
    shutil.copytree(build.LIBRARIES, tmp_path / "elsewhere" / "lib")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "elsewhere" / "src")
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "elsewhere" / "lib")
    assert kernels() is not None
