"""Reads adapter_model.safetensors: pairs of low-rank weights by the path of the linear layer that they change.

The names of the tensors say which layers; no list of target modules is ever interpreted. Knows no files.
"""

import re
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from worker.lora.errors import AdapterError
from worker.lora.settings import AdapterSettings
from worker.lora.weights import LinearShape, LowRank, Targets

WEIGHTS_FILE = "adapter_model.safetensors"
_PARSE_ERRORS = (SafetensorError, AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
_NAME = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<part>[AB])\.weight")
_LARGEST_SCALE = torch.finfo(torch.float32).max
_FORMATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
# What names of tensors reveal, the most telling first.
_TRACES = {
    "lora_magnitude_vector": "DoRA is not supported",
    "lora_embedding_": "changing embeddings is not supported",
    ".base_layer.": "the weights of a whole layer (as of a changed embedding or head) are not supported",
    ".lora_B.bias": "a bias of the low-rank layers is not supported",
    "modules_to_save": "replacing whole modules is not supported",
    "trainable_tokens": "embeddings of single tokens are not supported",
}


def parse_tensors(content: bytes) -> dict[str, Tensor]:
    """Return the file's tensors by name. Raises AdapterError."""
    try:
        tensors = load(content)
    except _PARSE_ERRORS as error:
        raise AdapterError(WEIGHTS_FILE, f"is damaged or no safetensors file: {error}") from error
    if not tensors:
        raise AdapterError(WEIGHTS_FILE, "holds no weights")
    return tensors


def pair_up(
    tensors: Mapping[str, Tensor], settings: AdapterSettings, targets: Targets, max_rank: int
) -> dict[str, LowRank]:
    """Return what the adapter adds to which layer, in order of paths and in the file's number format.

    Raises AdapterError if that is not a whole and plain LoRA adapter of a model with these targets.
    """
    parts = _parts_by_path(tensors)
    _refuse_another_models(parts, targets)
    return {path: _low_rank(path, parts[path], settings, targets[path], max_rank) for path in sorted(parts)}


def in_format(module: LowRank, path: str, dtype: torch.dtype) -> LowRank:
    """Return the weights in another number format. Raises AdapterError for those it can't hold."""
    down, up = (part.to(dtype).contiguous() for part in (module.down, module.up))
    for part, name in ((down, "lora_A"), (up, "lora_B")):
        if not bool(torch.isfinite(part).all()):
            raise AdapterError(f"{path}.{name}", f"has weights that are not finite in {dtype}")
    # Both ways in which passes may apply the scale, to weights and to rows.
    if not bool(torch.isfinite((up.float() * module.scale).to(dtype)).all()) or abs(module.scale) > _LARGEST_SCALE:
        raise AdapterError(path, f"is scaled by {module.scale:g} (of lora_alpha and r), which is not finite in {dtype}")
    return LowRank(down, up, module.scale)


def _parts_by_path(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """By path and "A" or "B"."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        trace = next((reason for mark, reason in _TRACES.items() if mark in name), None)
        if trace is not None or found is None:
            raise AdapterError(name, trace or "is a tensor that is none of lora_A.weight and lora_B.weight of a module")
        if tensor.dtype not in _FORMATS:
            raise AdapterError(
                name, f"is in the number format {tensor.dtype}, which is none of float16/32 and bfloat16"
            )
        if tensor.dim() != 2:
            raise AdapterError(name, f"has {tensor.dim()} dimensions: only linear layers can be changed")
        parts.setdefault(found["path"], {})[found["part"]] = tensor
    return parts


def _refuse_another_models(parts: Mapping[str, object], targets: Targets) -> None:
    unknown = sorted(set(parts) - set(targets))
    if not unknown:
        return
    there = f"such as {next(iter(targets))}" if targets else "of which there are none"
    if len(unknown) == len(parts):
        raise AdapterError(
            unknown[0],
            f"nothing in the adapter fits this model, none of its {len(parts)} modules is a linear layer {there}: "
            f"it was made for another model, or changes other kinds of layers",
        )
    raise AdapterError(unknown[0], f"is no linear layer inside this model's decoder layers, {there}")


def _low_rank(
    path: str, parts: Mapping[str, Tensor], settings: AdapterSettings, shape: LinearShape, max_rank: int
) -> LowRank:
    for part in ("A", "B"):
        if part not in parts:
            raise AdapterError(f"{path}.lora_{part}", "is missing: the other one of the pair is there")
    down, up = parts["A"], parts["B"]
    rank = settings.rank_of(path)
    if rank > max_rank:
        raise AdapterError(path, f"has rank {rank}, where at most {max_rank} is allowed")
    _demand_shape(f"{path}.lora_A", down, (rank, shape.in_features))
    _demand_shape(f"{path}.lora_B", up, (shape.out_features, rank))
    return LowRank(down, up, settings.scale_of(path))


def _demand_shape(name: str, tensor: Tensor, wanted: tuple[int, int]) -> None:
    if tuple(tensor.shape) != wanted:
        raise AdapterError(
            name,
            f"is {list(tensor.shape)}, where the model's layer and the configured rank make {list(wanted)}: "
            f"it was made for another model, or its configuration belongs to other weights",
        )
