"""What PEFT can save and this worker can't compute is refused by name, before anything of it is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.peft_adapters import MAX_RANK, read_tiny_adapter, save_adapter
from tests.integration.tiny_models import tiny
from worker.lora.errors import AdapterError
from worker.lora.folder import read_adapter
from worker.lora.targets import linear_targets

torch.set_num_threads(1)
Q_PROJ = ["q_proj"]

# Family, what PEFT is asked for, the field that is named, and what is said of it.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any], str, str]] = {
    "dora": ("llama", {"target_modules": Q_PROJ, "use_dora": True}, "use_dora", "DoRA"),
    "lora-bias": ("qwen2", {"target_modules": Q_PROJ, "lora_bias": True}, "lora_bias", "bias"),
    "biases": ("qwen2", {"target_modules": Q_PROJ, "bias": "lora_only"}, "bias", "lora_only"),
    "modules": ("llama", {"target_modules": Q_PROJ, "modules_to_save": ["lm_head"]}, "modules_to_save", "lm_head"),
    "tokens": (
        "llama", {"target_modules": Q_PROJ, "trainable_token_indices": [3]}, "trainable_token_indices", "single tokens",
    ),
    "experts": (
        "mixtral", {"target_modules": [], "target_parameters": ["experts.down_proj"]}, "target_parameters", "down_proj",
    ),
    "embedding": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens", "embedding"),
    "head": ("llama", {"target_modules": ["q_proj", "lm_head"]}, "lm_head", "head"),
    "conv1d": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}, "fan_in_fan_out", "Conv1D"),
    "repeated-layers": ("llama", {"target_modules": Q_PROJ, "layer_replication": [(0, 2), (1, 3)]},
                        "layer_replication", "repeating layers"),
    "activated": (
        "llama", {"target_modules": Q_PROJ, "alora_invocation_tokens": [5, 6]}, "alora_invocation_tokens", "activated",
    ),
    "pissa": ("llama", {"target_modules": Q_PROJ, "init_lora_weights": "pissa"}, "init_lora_weights", "pissa"),
    "olora": ("llama", {"target_modules": Q_PROJ, "init_lora_weights": "olora"}, "init_lora_weights", "olora"),
    "rank": ("llama", {"target_modules": Q_PROJ, "r": MAX_RANK + 1}, "q_proj", f"at most {MAX_RANK}"),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_of_lora_is_refused_by_name(variant: str, tmp_path: Path) -> None:
    family, settings, field, said = VARIANTS[variant]
    save_adapter(tmp_path, family, **settings)
    with pytest.raises(AdapterError, match=said) as refused:
        read_tiny_adapter(tmp_path, family)
    assert field in refused.value.field


def test_an_adapter_of_another_family_is_refused(tmp_path: Path) -> None:
    save_adapter(tmp_path, "gpt-neox", target_modules=["query_key_value"])
    with pytest.raises(AdapterError, match=r"made for another model.*") as refused:
        read_tiny_adapter(tmp_path, "llama")
    assert "model.layers.0.self_attn.q_proj" in refused.value.message


def test_an_adapter_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    save_adapter(tmp_path, "llama", target_modules=Q_PROJ)
    targets = linear_targets(tiny("llama"))
    halved = {path: type(shape)(shape.in_features // 2, shape.out_features) for path, shape in targets.items()}
    with pytest.raises(AdapterError, match=r"\[4, 32\], where .* \[4, 16\]: it was made for another model"):
        read_adapter(tmp_path, halved, torch.float32, MAX_RANK)
