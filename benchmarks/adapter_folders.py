"""Makes LoRA adapters to be measured with: PEFT folders of random weights that change every linear layer of a model.

What an adapter has learned costs nothing: figures are those of real ones of the same rank.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapters(model_folder: Path, into: Path, count: int, rank: int, seed: int = 0) -> dict[str, Path]:
    """Write `count` folders below `into`; return them by the names of their adapters."""
    shapes = _shapes(model_folder)
    made = {f"adapter-{number:02d}": into / f"adapter-{number:02d}" for number in range(count)}
    for number, folder in enumerate(made.values()):
        _make(folder, shapes, rank, np.random.default_rng((seed, number)))
    return made


def _shapes(model_folder: Path) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each layer to be changed, by its path in the model."""
    shapes: dict[str, tuple[int, int]] = {}
    for file in sorted(model_folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                path = name.removesuffix(".weight")
                if path != name and path.rpartition(".")[2] in _TARGETS:
                    outputs, inputs = weights.get_slice(name).get_shape()
                    shapes[path] = (outputs, inputs)
    if not shapes:
        raise ValueError(f"no layer in {model_folder} is called {', '.join(_TARGETS)}")
    return shapes


def _make(folder: Path, shapes: dict[str, tuple[int, int]], rank: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    tensors = {}
    for path, (outputs, inputs) in shapes.items():
        down = rng.standard_normal((rank, inputs), dtype=np.float32) / np.float32(inputs**0.5)
        up = rng.standard_normal((outputs, rank), dtype=np.float32) * np.float32(0.01)
        tensors[f"base_model.model.{path}.lora_A.weight"] = down
        tensors[f"base_model.model.{path}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(_TARGETS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
