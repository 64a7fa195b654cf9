"""Adapters that PEFT itself made, for tiny models with random weights, and what PEFT computes with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from hicache.tiers.device import DevicePool, LayerShape
from tests.integration.tiny_models import tiny
from worker.attention.registry import backend_by_name
from worker.lora.folder import read_adapter
from worker.lora.targets import linear_targets
from worker.lora.torch_bank import TorchAdapterBank
from worker.lora.weights import AdapterWeights
from worker.model.executor import ModelExecutor
from worker.model.probe import probe
from worker.model.transformers_forward import TransformersModel

MAX_RANK = 64


def save_adapter(folder: Path, family: str, seed: int = 0, **settings: Any) -> PeftModel:
    """Make an adapter with random weights for a tiny model of the family, and save it.

    Return the model that PEFT makes from what was saved: saving sorts patterns, which can change what they mean.
    """
    config = LoraConfig(**{"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6} | settings)
    model = get_peft_model(tiny(family), config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    model.save_pretrained(str(folder))
    adapted: PeftModel = PeftModel.from_pretrained(tiny(family), str(folder))
    adapted.train(False)
    return adapted


def read_tiny_adapter(folder: Path, family: str) -> AdapterWeights:
    return read_adapter(folder, linear_targets(tiny(family)), torch.float32, MAX_RANK)


def executor_with(adapters: Sequence[AdapterWeights], family: str, num_slots: int, min_rows: int = 1) -> ModelExecutor:
    """Return what computes a tiny model of the family, the adapters at places 0, 1 and so on."""
    model = tiny(family)
    probed = probe(model)
    bank = TorchAdapterBank(model, linear_targets(model), model.dtype, model.device)
    for place, adapter in enumerate(adapters):
        bank.put(place, adapter)
    layers = [LayerShape(p.shape.kv_heads, p.shape.key_dim, p.shape.value_dim) for p in probed]
    pool = DevicePool(layers, num_slots, model.dtype, model.device)
    definition = TransformersModel(model, probed, backend_by_name("torch", model.device), min_rows, bank)
    return ModelExecutor(definition, pool)


def logits_of(model: PeftModel, token_ids: Sequence[int]) -> Tensor:
    """What PEFT computes, float32[num_tokens, vocab_size]."""
    model.get_base_model().set_attn_implementation("eager")
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
    return logits
