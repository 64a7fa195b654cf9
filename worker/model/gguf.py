"""Converts a GGUF file, once, into a Hugging Face folder in the cache.

Reading a GGUF takes tens of seconds, the converted folder under one. Weights are stored in float32: exactly what the
file dequantises to, from which float32 and bfloat16 both load without a second rounding.

A folder is whole or not there: it is built beside its place, under a lock that lets only one process build it, and
renamed last. Its name holds a digest of the GGUF file, so another file under the same name gets another folder. A file
that comes in parts is put together for the conversion, checked, and gone when that has ended.
"""

import fcntl
import hashlib
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
from worker.model.gguf_config import complete_config, read_gguf_config
from worker.model.gguf_tokenizer import end_token_ids, read_gguf_tokenizer
from worker.model.progress import ProgressReporter
from worker.model.refusal import one_line, refuse_unsuited
from worker.model.revision import combine, file_digest
from worker.model.sources import GgufFile, GgufParts, HuggingFaceFolder

# Part of every converted folder's name: counts up when conversion changes.
_FORMAT = 2
# What readers of GGUF raise at a file that is damaged, or none.
_READ_ERRORS = (ValueError, LookupError, TypeError, ImportError, NotImplementedError, struct.error)
_MANIFEST = "radixgate.json"
_BLOCK_BYTES = 1 << 24


def converted(source: GgufFile | GgufParts, cache: Path, progress: ProgressReporter) -> HuggingFaceFolder:
    """Return the folder converted from `source`, converting it if there is none. Raises UnsupportedModelError."""
    digest, folder = _place(source, cache, progress)
    models = folder.parent
    models.mkdir(parents=True, exist_ok=True)
    if not _is_whole(folder):
        waiting = f"Waiting for another process that converts {source.name}"
        with _locked(models / f".{folder.name}.lock", lambda done: progress.report(waiting, done)):
            if not _is_whole(folder):
                _build(source, folder, progress)
    return HuggingFaceFolder(source.name, folder, digest)


def already_converted(
    source: GgufFile | GgufParts, cache: Path, progress: ProgressReporter
) -> HuggingFaceFolder | None:
    """Return the folder converted from `source` before, None if there is none."""
    digest, folder = _place(source, cache, progress)
    return HuggingFaceFolder(source.name, folder, digest) if _is_whole(folder) else None


def _place(source: GgufFile | GgufParts, cache: Path, progress: ProgressReporter) -> tuple[str, Path]:
    """Return what names the conversion of `source`, and its folder."""
    digest = combine([str(_FORMAT), _digest(source, progress)])
    return digest, cache / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', source.name)}-{digest[:16]}"


def _digest(source: GgufFile | GgufParts, progress: ProgressReporter) -> str:
    if isinstance(source, GgufParts):
        return source.sha256
    return file_digest(source.path, lambda done: progress.report(f"Reading {source.path.name}", done))


def _is_whole(folder: Path) -> bool:
    """Whether every file that conversion wrote is there with its size."""
    manifest = folder / _MANIFEST
    if not manifest.is_file():
        return False
    sizes: dict[str, int] = json.loads(manifest.read_text(encoding="utf-8"))["sizes"]
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


def _build(source: GgufFile | GgufParts, folder: Path, progress: ProgressReporter) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # damaged
    for leftover in folder.parent.glob(f".{folder.name}.building-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with _temporary_folder(folder) as building, _whole(source, folder, progress) as gguf:
        _convert_or_tell(gguf, source.name, building, progress)
        sizes = {path.name: path.stat().st_size for path in building.iterdir()}
        (building / _MANIFEST).write_text(json.dumps({"source": gguf.name, "sizes": sizes}), encoding="utf-8")
        building.chmod(0o755)  # a temporary folder is private
        building.rename(folder)


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which is gone afterwards unless it was renamed."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.building-", dir=folder.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _whole(source: GgufFile | GgufParts, folder: Path, progress: ProgressReporter) -> Iterator[Path]:
    """The GGUF file, put together beside `folder` for as long as the block lasts if it comes in parts."""
    if isinstance(source, GgufFile):
        yield source.path
        return
    with _temporary_folder(folder) as temporary:
        path = temporary / f"{source.name}.gguf"
        digest = _join(source, path, progress)
        if digest != source.sha256:
            raise UnsupportedModelError(
                f"the parts of {source.name} are not what they should be: together their SHA-256 is {digest}, not "
                f"{source.sha256}; install them again"
            )
        yield path


def _join(source: GgufParts, path: Path, progress: ProgressReporter) -> str:
    """Write the parts to `path` one behind the other; return the SHA-256 of it all, in hexadecimal."""
    stage = f"Joining the parts of {source.name}"
    digest, done, size = hashlib.sha256(), 0, sum(part.stat().st_size for part in source.paths)
    with path.open("wb") as whole:
        for part in source.paths:
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    whole.write(block)
                    digest.update(block)
                    done += len(block)
                    progress.report(stage, done / size)
    return digest.hexdigest()


def _convert_or_tell(gguf: Path, name: str, folder: Path, progress: ProgressReporter) -> None:
    try:
        _convert(gguf, name, folder, progress)
    except _READ_ERRORS as error:
        raise UnsupportedModelError(f"{gguf} cannot be read as a GGUF model: {one_line(error)}") from error


def _convert(gguf: Path, name: str, folder: Path, progress: ProgressReporter) -> None:
    stage = f"Converting {name} (once)"
    progress.report(stage, 0.0)
    config = read_gguf_config(gguf)
    refuse_unsuited(config)
    progress.report(stage, 0.1)
    tokenizer = read_gguf_tokenizer(gguf)
    tokenizer.save_pretrained(folder)
    progress.report(stage, 0.2)
    with reporting_bars(lambda done: progress.report(stage, 0.4 + 0.4 * done)):
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            config=config,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        progress.report(stage, 0.8)
        complete_config(model.config, gguf)
        ends = end_token_ids(gguf, tokenizer)
        model.generation_config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
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
