"""Compiling the native kernels: once, whole, and without harm where it cannot be done."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.worker.native.conftest import source
from worker.native import build
from worker.native.build import BuildError, build_all, library_path, main, variants

pytestmark = pytest.mark.skipif(not variants(), reason="there are no kernels for this architecture")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def a_program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_every_variant_is_compiled_once(sources: Path, compiler: str) -> None:
    libraries = build_all()
    assert libraries == [library_path(variant) for variant in variants()]
    assert files(build.LIBRARIES) == sorted(path.name for path in libraries), "nothing else is left behind"
    written = [path.stat().st_mtime_ns for path in libraries]
    assert build_all() == libraries
    assert [path.stat().st_mtime_ns for path in libraries] == written


def test_what_is_compiled_needs_no_compiler_any_more(
    sources: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = build_all()
    monkeypatch.setenv("PATH", "")
    assert build_all() == libraries


@pytest.mark.parametrize("name", ["api.cpp", "new.h"])
def test_other_sources_are_other_libraries_and_the_old_ones_go(sources: Path, compiler: str, name: str) -> None:
    old = build_all()
    (sources / name).write_text(source(more="// changed\n"))
    new = build_all()
    assert not set(old) & set(new)
    assert files(build.LIBRARIES) == sorted(path.name for path in new)


def test_a_renamed_or_moved_border_between_files_is_another_library(sources: Path) -> None:
    """Names and lengths are part of what is digested: the same bytes in other files are other sources."""
    [first, *_] = variants()
    (sources / "a.h").write_text("one")
    (sources / "b.h").write_text("two")
    names = {library_path(first)}
    (sources / "a.h").write_text("onet")
    (sources / "b.h").write_text("wo")
    names.add(library_path(first))
    (sources / "b.h").rename(sources / "c.h")
    names.add(library_path(first))
    assert len(names) == 3


def test_without_a_compiler_the_reason_is_told(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found: none of c\+\+, g\+\+, clang\+\+ is on the PATH"):
        build_all()


def test_the_command_without_a_compiler_says_so_and_is_no_failure(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    main()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("native kernels are left out, the worker will compute with torch: no C++ compiler")


def test_the_command_names_what_there_is(sources: Path, compiler: str, capsys: pytest.CaptureFixture[str]) -> None:
    main()
    told = capsys.readouterr()
    assert told.out.startswith("native kernels: radixgate-")
    assert all(library_path(variant).name in told.out for variant in variants())
    assert told.err == ""


def test_sources_that_do_not_compile_are_told_with_what_the_compiler_said(sources: Path, compiler: str) -> None:
    (sources / "api.cpp").write_text("int answer() { return fortytwo; }")
    with pytest.raises(BuildError, match=rf"(?s){variants()[0].name}: .*fortytwo"):
        build_all()
    assert files(build.LIBRARIES) == []


def test_a_compiler_that_does_not_work_is_told_with_its_words(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(a_program(tmp_path / "broken", "echo no licence >&2; exit 3")))
    with pytest.raises(BuildError, match=rf"{variants()[0].name}: no licence"):
        build_all()


def test_a_compiler_that_takes_too_long_is_given_up(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 0.2)
    monkeypatch.setenv("CXX", str(a_program(tmp_path / "slow", "exec sleep 30")))
    with pytest.raises(BuildError, match=r"timed out after 0\.2 seconds"):
        build_all()


def test_a_variant_that_the_compiler_does_not_know_leaves_the_others_and_is_named(
    sources: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old compiler: it has never heard of the newest processors."""
    first, *others = variants()
    if not others:
        pytest.skip("there is only one kind of processor here")
    flag = first.flags[-1]
    script = f'case "$*" in *{flag}*) echo unknown {flag} >&2; exit 1;; esac\nexec {compiler} "$@"'
    monkeypatch.setenv("CXX", str(a_program(tmp_path / "old", script)))
    assert build_all() == [library_path(variant) for variant in others]
    main()
    assert f"this compiler makes none for {first.name}: install a newer one" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["", " -DTOLD"])
def test_the_compiler_that_cxx_names_is_taken_with_its_arguments(
    sources: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    log = tmp_path / "log"
    mine = a_program(tmp_path / "my-compiler", f'echo "$1" >>{log}\nexec {compiler} "$@"')
    monkeypatch.setenv("CXX", f"{mine}{arguments}")
    build_all()
    assert log.read_text().split() == [arguments.strip() or "-std=c++17"] * len(variants())


def test_a_cxx_that_is_nowhere_is_passed_over(sources: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build_all()


def test_a_folder_that_cannot_be_written_to_is_told(
    sources: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where a folder ought to be: nobody can write there, the superuser included."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "file" / "lib")
    with pytest.raises(BuildError, match=r"no place for libraries: .*lib"):
        build_all()
    main()
    assert "left out" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to the superuser")
def test_a_read_only_folder_is_told_and_what_is_there_is_used(sources: Path, compiler: str) -> None:
    libraries = build_all()
    build.LIBRARIES.chmod(0o555)
    try:
        assert build_all() == libraries
        (sources / "more.h").write_text("")
        with pytest.raises(BuildError, match="Permission denied"):
            build_all()
    finally:
        build.LIBRARIES.chmod(0o755)


def test_a_stale_library_that_cannot_be_removed_does_no_harm(sources: Path, compiler: str) -> None:
    build.LIBRARIES.mkdir()
    (build.LIBRARIES / "radixgate-odd.so").mkdir()
    assert build_all() == [library_path(variant) for variant in variants()]


def test_two_builds_at_once_leave_whole_libraries(sources: Path, compiler: str) -> None:
    """Processes, as two installations would be; each compiles into a folder of its own."""
    program = (
        "from pathlib import Path; import sys; from worker.native import build; "
        "build.SOURCES, build.LIBRARIES = Path(sys.argv[1]), Path(sys.argv[2]); sys.stdin.read(1); build.main()"
    )
    command = [sys.executable, "-c", program, str(sources), str(build.LIBRARIES)]
    stale = build.LIBRARIES / "radixgate-avx2-0123456789ab.so"
    build.LIBRARIES.mkdir()
    stale.write_bytes(b"")
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    started = threading.Barrier(2)

    def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
        started.wait(timeout=30)
        return process.communicate("x", timeout=60)

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(finish, both))
    assert [process.returncode for process in both] == [0, 0]
    assert [(out.startswith("native kernels: radixgate-"), err) for out, err in told] == [(True, "")] * 2
    assert files(build.LIBRARIES) == sorted(library_path(variant).name for variant in variants())


def test_an_architecture_without_kernels_has_no_variants() -> None:
    assert variants("vax") == ()
    assert [variant.name for variant in variants("x86_64")] == ["avx512-bf16", "avx512", "avx2"]
    for better, worse in zip(variants("x86_64"), variants("x86_64")[1:], strict=False):
        assert better.needs > worse.needs, "the best that fits is the first that fits"
