"""Writes adapters as PEFT does, by hand: folders that can be made wrong in every way."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from worker.lora.weights import LinearShape

TARGETS = {
    "model.layers.0.self_attn.q_proj": LinearShape(8, 12),
    "model.layers.0.mlp.down_proj": LinearShape(16, 8),
    "model.layers.1.self_attn.q_proj": LinearShape(8, 12),
}
Q0, DOWN0, Q1 = TARGETS
SETTINGS: Mapping[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "down_proj"],
    "base_model_name_or_path": "somewhere",
    "lora_dropout": 0.1,
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
    "loftq_config": {},
    "init_lora_weights": True,
}


def tensor_name(path: str, part: str) -> str:
    return f"base_model.model.{path}.lora_{part}.weight"


def tensors(rank: int = 2, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for path, shape in TARGETS.items():
        made[tensor_name(path, "A")] = torch.randn(rank, shape.in_features, generator=generator)
        made[tensor_name(path, "B")] = torch.randn(shape.out_features, rank, generator=generator)
    return made


def write_settings(folder: Path, **changes: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({**SETTINGS, **changes}))


def write_folder(folder: Path, weights: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """Write an adapter of these weights, its settings changed by `changes`."""
    folder.mkdir(exist_ok=True)
    write_settings(folder, **changes)
    save_file(dict(tensors() if weights is None else weights), folder / "adapter_model.safetensors")
    return folder
