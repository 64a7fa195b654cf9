"""Adapters that PEFT itself made, for tiny models with random weights, and what PEFT computes with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from hicache.tiers.device import DevicePool
from tests.integration.tiny_models import tiny
from tests.native_kernels import require_kernels
from worker.attention.registry import backend_by_name
from worker.config import ModelConfig
from worker.lora.folder import read_adapter
from worker.lora.targets import linear_targets
from worker.lora.torch_bank import TorchAdapterBank
from worker.lora.weights import AdapterWeights
from worker.model.choosing import forward_model, layer_shapes
from worker.model.executor import ForwardModel, ModelExecutor
from worker.model.native_forward import NativeModel
from worker.model.plain_decoder import plain_decoder
from worker.model.probe import ProbedLayer, probe
from worker.model.transformers_forward import TransformersModel

MAX_RANK = 64


def save_adapter(folder: Path, family: str, seed: int = 0, **settings: Any) -> PeftModel:
    """Make an adapter with random weights for a tiny model of the family, and save it.

    Return the model that PEFT makes from what was saved: saving sorts patterns, which can change what they mean.
    """
    wanted: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6} | settings
    model = get_peft_model(tiny(family), LoraConfig(**wanted))
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
    backend = backend_by_name("torch", model.device)
    return _executor(TransformersModel(model, probed, backend, min_rows, bank), probed, adapters, num_slots)


def native_executor_with(adapters: Sequence[AdapterWeights], family: str, num_slots: int) -> ModelExecutor:
    """The same in native code. Skips the test where there is none."""
    model = tiny(family)
    probed = probe(model)
    decoder = plain_decoder(model, probed, require_kernels(), threads=1)
    return _executor(NativeModel(decoder), probed, adapters, num_slots)


def chosen_executor_with(adapters: Sequence[AdapterWeights], family: str, num_slots: int) -> ModelExecutor:
    """What a worker chooses among the definitions of transformers: with packed weights, where that works."""
    model = tiny(family)
    probed = probe(model)
    config = ModelConfig(forward="transformers", attention="torch")
    return _executor(forward_model(model, probed, config), probed, adapters, num_slots)


def _executor(
    definition: ForwardModel, probed: tuple[ProbedLayer, ...], adapters: Sequence[AdapterWeights], num_slots: int
) -> ModelExecutor:
    bank = definition.bank()
    assert bank is not None
    for place, adapter in enumerate(adapters):
        bank.put(place, adapter)
    pool = DevicePool(layer_shapes(probed), num_slots, torch.float32, torch.device("cpu"))
    return ModelExecutor(definition, pool)


def logits_of(model: PeftModel, token_ids: Sequence[int]) -> Tensor:
    """What PEFT computes, float32[num_tokens, vocab_size]."""
    base_model: Any = model.get_base_model()
    base_model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
    return logits
