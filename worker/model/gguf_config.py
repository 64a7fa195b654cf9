"""Completes the configuration that transformers reads from a GGUF file.

It skips some of what such a file says about rotary embeddings, windows and soft caps, silently: the model loads and is
subtly wrong. Here that is written into the configuration, or the file is refused by name where a configuration has no
words for it. Knows metadata and two kinds of tensors; of weights it knows nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.gguf.reader import GgufHeader, load_gguf_state_dict, read_gguf_metadata
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.errors import UnsupportedModelError

# What a file may say beside what transformers reads, and where a configuration keeps it.
_FIELDS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SCALING = "rope.scaling."
# By number of layers: scores are divided by the root of hidden size over heads, which no file says.
_SCALED_BY_HIDDEN = frozenset({("gemma2", 46), ("gemma3", 62)})
# Llama 3 in all its sizes; only the factor differs.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_gguf_config(gguf: Path) -> PreTrainedConfig:
    """Return the configuration as transformers reads it. Raises ValueError and its like for a file that is damaged."""
    read_gguf_metadata(str(gguf))  # says what is wrong; the next one calls it a file that isn't JSON
    config: PreTrainedConfig = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    return config


def complete_config(config: PreTrainedConfig, gguf: Path) -> None:
    """Write into `config` what `gguf` says beyond it. Raises UnsupportedModelError."""
    metadata, tensors = read_gguf_metadata(str(gguf))
    family = metadata["general.architecture"]
    said = {key.removeprefix(f"{family}."): value for key, value in metadata.items() if key.startswith(f"{family}.")}
    _take_fields(config, said, gguf.name)
    _take_scaling(config, said, gguf.name)
    if (family, config.num_hidden_layers) in _SCALED_BY_HIDDEN:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if any(name.startswith("rope_factors_") for name in tensors):
        raise UnsupportedModelError(f"{gguf.name}: rotary embeddings with long and short factors in a GGUF file")
    if "rope_freqs.weight" in tensors:
        factors = load_gguf_state_dict(GgufHeader.from_file(str(gguf)))["rope_freqs.weight"][...]
        _take_factors(config, factors.float(), gguf.name)


def _take_fields(config: PreTrainedConfig, said: Mapping[str, Any], name: str) -> None:
    for key, attribute in _FIELDS.items():
        value = said.get(key)
        if not value or value == getattr(config, attribute, None):
            continue
        if not hasattr(config, attribute):
            raise UnsupportedModelError(f"{name}: its {key} is {value}, which {config.model_type} has no place for")
        setattr(config, attribute, value)


def _take_scaling(config: PreTrainedConfig, said: Mapping[str, Any], name: str) -> None:
    scaling = {key.removeprefix(_SCALING): value for key, value in said.items() if key.startswith(_SCALING)}
    rope_type = scaling.pop("type", "none")
    if rope_type == "none":
        return
    scaling.pop("finetuned", None)
    parameters = {"rope_type": rope_type, "factor": scaling.pop("factor", None)}
    if rope_type == "yarn":
        parameters["original_max_position_embeddings"] = scaling.pop("original_context_length", None)
    scaling.pop("original_context_length", None)
    odd = sorted(scaling)
    if rope_type not in {"linear", "yarn"} or odd or None in parameters.values():
        raise UnsupportedModelError(f"{name}: rotary embeddings scaled by {', '.join([rope_type, *odd])}")
    rope = config.rope_parameters
    # Where each kind of layer has its own, those with windows stay as they are: they never look far.
    rope.get("full_attention", rope).update(parameters)


def _take_factors(config: PreTrainedConfig, factors: Tensor, name: str) -> None:
    """Say in words what `factors`, float32[head_dim / 2], divide the frequencies by."""
    theta = config.rope_parameters["rope_theta"]
    spelled = {"rope_type": "llama3", "rope_theta": theta, "factor": float(factors.max()), **_LLAMA3}
    exponents = torch.arange(len(factors), dtype=torch.float32) / len(factors)
    plain, config.rope_parameters = config.rope_parameters, spelled
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if not torch.allclose(frequencies, theta**-exponents / factors, rtol=1e-3):
        config.rope_parameters = plain
        raise UnsupportedModelError(f"{name}: its factors of rotary frequencies are not those of Llama 3")
