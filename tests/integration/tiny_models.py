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
_ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SHARED = {"moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
           "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}  # fmt: skip
_LATENT = {"head_dim": None, "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
           "qk_rope_head_dim": 8, "v_head_dim": 12} | _SHARED  # fmt: skip
_FOUR_LAYERS = {"num_hidden_layers": 4, "sliding_window": WINDOW, "layer_types": [_SLIDING, _FULL] * 2,
                "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}  # fmt: skip
_WIDER = {"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}}}
_GPTJ = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "rotary_dim": 4, "num_key_value_heads": None,
         "head_dim": None}  # fmt: skip
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "num_key_value_heads": None, "head_dim": None}


def _rotating(rope_type: str, **settings: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **settings}}


# (model_type, what it sets beside the base), by the name of the test.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-yarn": ("llama", _rotating("yarn", original_max_position_embeddings=64)),
    "llama-llama3": (
        "llama",
        _rotating("llama3", original_max_position_embeddings=64, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama-linear": ("llama", _rotating("linear")),
    "llama-dynamic": ("llama", _rotating("dynamic")),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {}),
    "qwen3-moe": ("qwen3_moe", _MOE),
    "qwen3-window": ("qwen3", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": WINDOW}),
    "qwen2-moe": (
        "qwen2_moe",
        _MOE | {"shared_expert_intermediate_size": 24, "use_sliding_window": True, "max_window_layers": 1,
                "sliding_window": WINDOW},
    ),
    "mistral-window": ("mistral", {"sliding_window": WINDOW}),
    "mixtral": ("mixtral", _ROUTED),
    "mixtral-window": ("mixtral", _ROUTED | {"sliding_window": WINDOW}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", _MIXED | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", _MIXED | {"query_pre_attn_scalar": 8}),
    "gemma3n": (
        "gemma3n_text",
        _FOUR_LAYERS | {"num_kv_shared_layers": 2, "intermediate_size": [48] * 4, "laurel_rank": 8,
                        "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4},
    ),
    "gemma4": ("gemma4_text", _FOUR_LAYERS | _WIDER),
    "gemma4-shared": ("gemma4_text", _FOUR_LAYERS | _WIDER | {"num_kv_shared_layers": 2}),
    "gemma4-moe": (
        "gemma4_text",
        _FOUR_LAYERS | _WIDER
        | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
    ),
    "gpt-oss": ("gpt_oss", _MIXED | _ROUTED),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "phi3-longrope": (
        "phi3",
        _rotating(
            "longrope", original_max_position_embeddings=16, short_factor=[1.0] * 4, long_factor=[3.0, 2.0, 1.5, 1.2]
        ) | {"original_max_position_embeddings": 16},
    ),
    "granite": ("granite", {"attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "gpt-neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", _GPT2),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4}),
    "olmo2": ("olmo2", {}),
    "cohere2": ("cohere2", _MIXED | {"logit_scale": 1.0}),
    "exaone4": ("exaone4", _MIXED),
    "smollm3": ("smollm3", {}),
    "stablelm": ("stablelm", {}),
    "olmo": ("olmo", {}),
    "olmo3": ("olmo3", _MIXED),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "flex-olmo": ("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    "cohere": ("cohere", {"logit_scale": 1.0}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "glm4-moe": ("glm4_moe", _SHARED),
    "granite-moe": ("granitemoe", _ROUTED),
    "granite-moe-shared": ("granitemoeshared", _ROUTED | {"shared_intermediate_size": 24}),
    "deepseek-v2": ("deepseek_v2", _LATENT | {"q_lora_rank": None}),
    "deepseek-v3": ("deepseek_v3", _LATENT | {"q_lora_rank": 16}),
    "youtu": ("youtu", _LATENT | {"q_lora_rank": 16}),
    "minicpm3": ("minicpm3", _LATENT | {"q_lora_rank": 16}),
    "glm4-moe-lite": ("glm4_moe_lite", _LATENT | {"q_lora_rank": 16}),
    "dots1": ("dots1", _SHARED),
    "solar-open": ("solar_open", _SHARED),
    "exaone": ("exaone", {}),
    "exaone-moe": (
        "exaone_moe",
        _MIXED | _MOE | {"num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
    "granite-window": ("granite_swa", _MIXED),
    "internlm3": ("internlm3", {}),
    "hyperclovax": ("hyperclovax", {}),
    "minimax-m2": ("minimax_m2", _ROUTED),
    "hunyuan": ("hunyuan_v1_dense", {}),
    "hunyuan-moe": ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2}),
    "ernie": ("ernie4_5", {}),
    "ernie-moe": (
        "ernie4_5_moe",
        {"moe_intermediate_size": 24, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1,
         "moe_layer_start_index": 1},
    ),
    "seed-oss": ("seed_oss", {}),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {}),
    "helium": ("helium", {}),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", {}),
    "persimmon": ("persimmon", {"num_key_value_heads": None, "head_dim": None}),
    "ministral-window": ("ministral", {"sliding_window": WINDOW}),
    "ministral3": ("ministral3", {}),
    "starcoder2-window": ("starcoder2", {"sliding_window": WINDOW}),
    "vaultgemma": ("vaultgemma", _MIXED | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "cwm": ("cwm", _MIXED),
    "phi": ("phi", {}),
    "phimoe": ("phimoe", _ROUTED),
    "gptj": ("gptj", _GPTJ),
    "codegen": ("codegen", _GPTJ),
    "gpt-bigcode": ("gpt_bigcode", _GPT2),
    "biogpt": ("biogpt", {"num_key_value_heads": None, "head_dim": None}),
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
