"""Converts a GGUF file, once, into a Hugging Face folder in the cache.

Reading a GGUF takes tens of seconds, the converted folder under one. Weights are stored in float32: exactly what the
file dequantises to, from which float32 and bfloat16 both load without a second rounding.

A folder is whole or not there: it is built beside its place, under a lock that lets only one process build it, and
renamed last. Its name holds a digest of the GGUF file, so another file under the same name gets another folder.
"""

import fcntl
import json
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from worker.errors import UnsupportedModelError
from worker.model.bars import reporting_bars
from worker.model.gguf_tokenizer import read_gguf_tokenizer
from worker.model.progress import ProgressReporter
from worker.model.revision import combine, file_digest
from worker.model.sources import GgufFile, HuggingFaceFolder

# Part of every converted folder's name: counts up when conversion changes.
_FORMAT = 1
# What readers of GGUF raise at a file that is damaged, or none.
_READ_ERRORS = (ValueError, LookupError, TypeError, ImportError, NotImplementedError, struct.error)
_MANIFEST = "radixgate.json"


def converted(source: GgufFile, cache: Path, progress: ProgressReporter) -> HuggingFaceFolder:
    """Return the folder converted from `source`, converting it if there is none. Raises UnsupportedModelError."""
    digest = file_digest(source.path, lambda done: progress.report(f"Reading {source.path.name}", done))
    digest = combine([str(_FORMAT), digest])
    models = cache / "models"
    models.mkdir(parents=True, exist_ok=True)
    folder = models / f"{re.sub(r'[^A-Za-z0-9._-]', '_', source.name)}-{digest[:16]}"
    if not _is_whole(folder):
        waiting = f"Waiting for another process that converts {source.name}"
        with _locked(models / f".{folder.name}.lock", lambda done: progress.report(waiting, done)):
            if not _is_whole(folder):
                _build(source, folder, progress)
    return HuggingFaceFolder(source.name, folder, digest)


def _is_whole(folder: Path) -> bool:
    """Whether every file that conversion wrote is there with its size."""
    manifest = folder / _MANIFEST
    if not manifest.is_file():
        return False
    sizes: dict[str, int] = json.loads(manifest.read_text(encoding="utf-8"))["sizes"]
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


def _build(source: GgufFile, folder: Path, progress: ProgressReporter) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # damaged
    for leftover in folder.parent.glob(f".{folder.name}.building-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.building-", dir=folder.parent))
    try:
        _convert_or_tell(source, building, progress)
        sizes = {path.name: path.stat().st_size for path in building.iterdir()}
        (building / _MANIFEST).write_text(json.dumps({"source": source.path.name, "sizes": sizes}), encoding="utf-8")
        building.chmod(0o755)  # a temporary folder is private
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _convert_or_tell(source: GgufFile, folder: Path, progress: ProgressReporter) -> None:
    try:
        _convert(source, folder, progress)
    except _READ_ERRORS as error:
        raise UnsupportedModelError(f"{source.path} cannot be read as a GGUF model: {error}") from error


def _convert(source: GgufFile, folder: Path, progress: ProgressReporter) -> None:
    stage = f"Converting {source.name} (once)"
    progress.report(stage, 0.0)
    read_gguf_tokenizer(source.path).save_pretrained(folder)
    progress.report(stage, 0.2)
    with reporting_bars(lambda done: progress.report(stage, 0.4 + 0.4 * done)):
        model = AutoModelForCausalLM.from_pretrained(
            str(source.path.parent),
            gguf_file=source.path.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        progress.report(stage, 0.8)
        _without_quantisation(model).save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    progress.report(stage, 1.0)


def _without_quantisation(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not know they came from a GGUF file: that one would refuse to be saved."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    fresh.tie_weights()
    return fresh


@contextmanager
def _locked(path: Path, on_wait: Callable[[float], None]) -> Iterator[None]:
    """Hold an exclusive lock; the system lets go of it when the process ends, however it ends.

    `on_wait` is told 0 and 1 around the wait for another process, if there is one.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
            on_wait(1.0)
        yield
