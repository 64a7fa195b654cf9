"""Tiny models of many families with random weights: as many kinds of attention as transformers has, in milliseconds."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from worker.model.forward import IMPLEMENTATION, register

WINDOW = 9
_BASE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    # Large, so that logits are spread and no choice hangs on rounding.
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MOE = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_MIXED = {"sliding_window": WINDOW, "layer_types": [_SLIDING, _FULL, _SLIDING]}
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "num_key_value_heads": None, "head_dim": None}

# (model_type, what it sets beside the base), by the name of the test.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                             "original_max_position_embeddings": 64}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {}),
    "qwen3-moe": ("qwen3_moe", _MOE),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", _MIXED | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", _MIXED | {"query_pre_attn_scalar": 8}),
    "gpt-oss": ("gpt_oss", _MIXED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "granite": ("granite", {"attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "gpt-neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", _GPT2),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4}),
    "olmo2": ("olmo2", {}),
    "cohere2": ("cohere2", _MIXED | {"logit_scale": 1.0}),
    "exaone4": ("exaone4", _MIXED),
    "smollm3": ("smollm3", {}),
    "stablelm": ("stablelm", {}),
}  # fmt: skip


def tiny_model(model_type: str, **settings: Any) -> PreTrainedModel:
    """Return a model with random weights, the same each time, that attends through this worker."""
    register()
    fields = {name: value for name, value in {**_BASE, **settings}.items() if value is not None}
    config = AutoConfig.for_model(model_type, **fields)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=IMPLEMENTATION, dtype=torch.float32
    )
    model.generation_config.eos_token_id = None
    model.requires_grad_(False)
    model.train(False)
    return model


def tiny(family: str) -> PreTrainedModel:
    model_type, settings = FAMILIES[family]
    return tiny_model(model_type, **settings)
