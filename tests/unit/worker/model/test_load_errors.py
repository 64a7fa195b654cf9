"""What cannot be loaded ends with one line that says why; and nobody is said to wait who does not."""

import fcntl
import struct
import threading
from pathlib import Path

import pytest

from tests.processes import wait_until
from worker.config import ModelConfig
from worker.errors import UnsupportedModelError, WorkerStartError
from worker.model.gguf import converted
from worker.model.loading import load_model
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile


class Stages:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def report(self, stage: str, fraction: float) -> None:
        self.seen.append((stage, fraction))


def gguf_file(folder: Path, content: bytes = b"no model") -> GgufFile:
    path = folder / "bad.gguf"
    path.write_bytes(content)
    return GgufFile("bad", path)


@pytest.mark.parametrize(
    "content",
    [b"", b"no model at all", b"GGUF", b"GGUF" + bytes(100), b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + b"\xff" * 100],
    ids=["empty", "text", "magic", "version 0", "garbage"],
)
def test_a_file_that_is_no_gguf_model_is_named(tmp_path: Path, content: bytes) -> None:
    source = gguf_file(tmp_path, content)
    with pytest.raises(UnsupportedModelError) as caught:
        converted(source, tmp_path / "cache", SilentProgress())
    assert str(caught.value).startswith(f"{source.path} cannot be read as a GGUF model: ")


@pytest.mark.parametrize("device", ["potato", "cuda:", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(WorkerStartError, match=f"^worker.model.device: '{device}' is "):
        load_model(ModelConfig(device=device), SilentProgress())


def test_who_converts_alone_waits_for_nobody(tmp_path: Path) -> None:
    stages = Stages()
    with pytest.raises(UnsupportedModelError):
        converted(gguf_file(tmp_path), tmp_path / "cache", stages)
    assert not any("Waiting" in stage for stage, _ in stages.seen)


def test_who_waits_for_another_process_says_so(tmp_path: Path) -> None:
    source, stages = gguf_file(tmp_path), Stages()
    with pytest.raises(UnsupportedModelError):
        converted(source, tmp_path / "cache", SilentProgress())
    [lock] = (tmp_path / "cache" / "models").glob(".*.lock")

    def convert() -> None:
        with pytest.raises(UnsupportedModelError):
            converted(source, tmp_path / "cache", stages)

    waiting = "Waiting for another process that converts bad"
    thread = threading.Thread(target=convert)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread.start()
        wait_until(lambda: (waiting, 0.0) in stages.seen)
        assert (waiting, 1.0) not in stages.seen
    thread.join(30)
    assert (waiting, 1.0) in stages.seen
