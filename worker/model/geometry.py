"""Reads a model's geometry without its weights: the shapes of its layers, and how many numbers it is made of.

The model is built on the meta device, which has shapes and no memory, and probed as a worker probes it. So what is said
here is what a worker finds.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hicache.tiers.shapes import LayerShape
from worker.errors import UnsupportedModelError, WorkerStartError
from worker.model import hardware
from worker.model.choosing import layer_shapes
from worker.model.forward import IMPLEMENTATION, register
from worker.model.gguf import already_converted, converted
from worker.model.gguf_config import read_gguf_config
from worker.model.probe import probe, text_config
from worker.model.progress import ProgressReporter
from worker.model.refusal import one_line, read_config, refuse_unsuited
from worker.model.sources import GgufFile, HuggingFaceFolder, cache_folder, find_model

# A model whose definition looks at values cannot be probed without any. Smaller ones are built with random weights.
_MOST_BUILT = 2_000_000_000
_GGUF_ERRORS = (ValueError, LookupError, TypeError, OSError)


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """What memory a model takes follows from this."""

    name: str
    layers: tuple[LayerShape, ...]
    num_parameters: int
    context_length: int | None  # tokens; None where the configuration does not say


def read_geometry(model: str, progress: ProgressReporter) -> ModelGeometry:
    """Return the geometry of what `model` names: what a worker can serve, or a folder with no more than a config.json.

    Raises WorkerStartError, if there is no such model or it cannot be served.
    """
    name, config = _configuration(model, progress)
    refuse_unsuited(config)
    register()
    with torch.device("meta"):
        built = _built(config)
    num_parameters = sum(parameter.numel() for parameter in built.parameters())
    try:
        probed = probe(built)
    except UnsupportedModelError:
        if num_parameters > _MOST_BUILT:
            raise
        probed = probe(_built(config))
    length = getattr(text_config(built), "max_position_embeddings", None)
    return ModelGeometry(name, layer_shapes(probed), num_parameters, int(length) if length else None)


def best_format(device: str) -> str:
    """Return the number format that a worker chooses by itself: on this machine for "cpu", on any GPU for "cuda"."""
    return "bf16" if device == "cuda" or hardware.has_native_bf16(torch.device("cpu")) else "fp32"


def _built(config: PreTrainedConfig) -> PreTrainedModel:
    # In bfloat16: products of grouped experts have no other meta kernels. Shapes don't depend on it.
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=IMPLEMENTATION, dtype=torch.bfloat16
    )
    model.requires_grad_(False)
    model.train(False)
    return model


def _configuration(model: str, progress: ProgressReporter) -> tuple[str, PreTrainedConfig]:
    path = Path(model).expanduser()
    folder = path.parent if path.name == "config.json" and path.is_file() else path
    if (folder / "config.json").is_file():
        return folder.resolve().name, read_config(folder)
    source = find_model(model)
    if isinstance(source, HuggingFaceFolder):
        return source.name, read_config(source.path)
    if (before := already_converted(source, cache_folder(), progress)) is not None:
        return before.name, read_config(before.path)
    if isinstance(source, GgufFile):
        return source.name, _gguf_configuration(source)
    # Its beginning is spread over files: as a worker does, once.
    whole = converted(source, cache_folder(), progress)
    return whole.name, read_config(whole.path)


def _gguf_configuration(source: GgufFile) -> PreTrainedConfig:
    try:
        return read_gguf_config(source.path)
    except _GGUF_ERRORS as error:
        raise WorkerStartError(f"{source.path} cannot be read as a GGUF model: {one_line(error)}") from error
