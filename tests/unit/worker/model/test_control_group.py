from pathlib import Path

from worker.model.control_group import memory_left_bytes

GIB = 1 << 30


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n", "ascii")


def member(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "membership"
    path.write_text(text, "ascii")
    return path


def test_what_is_left_is_the_limit_less_what_is_used(tmp_path: Path) -> None:
    group(tmp_path / "root", memory_max=4 * GIB, memory_current=GIB)
    assert memory_left_bytes(tmp_path / "root", member(tmp_path, "0::/\n")) == 3 * GIB


def test_files_that_were_read_and_are_not_in_use_do_not_count(tmp_path: Path) -> None:
    stat = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file 7"
    group(tmp_path / "root", memory_max=4 * GIB, memory_current=3 * GIB, memory_stat=stat)
    assert memory_left_bytes(tmp_path / "root", member(tmp_path, "0::/\n")) == 3 * GIB


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    group(root / "a" / "b", memory_max="max", memory_current=1)
    group(root / "a", memory_max=2 * GIB, memory_current=GIB)
    group(root, memory_current=9 * GIB)  # the root of all has no limit
    assert memory_left_bytes(root, member(tmp_path, "0::/a/b\n")) == GIB


def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    group(tmp_path / "root", memory_max=GIB, memory_current=2 * GIB)
    assert memory_left_bytes(tmp_path / "root", member(tmp_path, "0::/\n")) == 0


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "memory" / "pod"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {GIB}\n")
    groups = member(tmp_path, "3:cpu,cpuacct:/other\n2:memory:/pod\n")
    assert memory_left_bytes(tmp_path / "root", groups) == 3 * GIB


def test_without_a_limit_nobody_knows(tmp_path: Path) -> None:
    group(tmp_path / "root", memory_max="max", memory_current=GIB)
    assert memory_left_bytes(tmp_path / "root", member(tmp_path, "0::/\n")) is None
    assert memory_left_bytes(tmp_path / "root", tmp_path / "missing") is None
