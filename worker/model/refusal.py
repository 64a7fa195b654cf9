"""Says from a model's configuration alone why it cannot be served, before anything is built or read.

What a forward pass has to show is `worker.model.probe`'s. Knows transformers' configurations and classes, and no
weights.
"""

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from worker.errors import UnsupportedModelError
from worker.model.families import TESTED

_CONFIG_ERRORS = (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError)
_STATE = "which keep a state instead of keys and values (state space, linear attention)"
# Kinds of layers that attend over the keys of each token, as slots hold them.
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_ODD_LAYERS = {
    "linear_attention": _STATE,
    "mamba": _STATE,
    "recurrent": _STATE,
    "hybrid": "which keep a state beside their keys and values (state space)",
    "conv": "which keep their last inputs instead of keys and values (convolution)",
    "indexed_attention": "which choose the tokens they see by an index of their own",
    "chunked_attention": "which see a chunk of the text and not what precedes each token",
}
_OTHER_SENSES = ("vision_config", "audio_config")


def read_config(folder: Path) -> PreTrainedConfig:
    """Return the configuration in `folder`. Raises UnsupportedModelError if transformers does not know its family."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except _CONFIG_ERRORS as error:
        raise UnsupportedModelError(f"{folder.name}: its configuration cannot be read: {one_line(error)}") from error
    return config


def one_line(error: Exception) -> str:
    """What an error is and says, without the advice that follows in further lines."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def refuse_unsuited(config: PreTrainedConfig) -> None:
    """Raise UnsupportedModelError if no model with this configuration can be served here."""
    reason = _reason(config)
    if reason is not None:
        raise UnsupportedModelError(f"{config.model_type}: {reason}")


def odd_layers(config: PreTrainedConfig) -> str | None:
    """Return what is odd about the kinds of layers that `config` lists, None if nothing is."""
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if not odd:
        return None
    explained = next((_ODD_LAYERS[kind] for kind in odd if kind in _ODD_LAYERS), "which are unknown here")
    return f"layers of type {', '.join(odd)}, {explained}"


def _reason(config: PreTrainedConfig) -> str | None:
    if config.is_encoder_decoder:
        return "an encoder-decoder model; only decoders are served, where a prompt's keys come before the answer's"
    senses = [name for name in _OTHER_SENSES if getattr(config, name, None) is not None]
    if senses:
        return f"more than a language model (it has a {senses[0]}); save its language part by itself and serve that"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "no language model: transformers has no causal one for it"
    if getattr(config, "is_decoder", True) is False:
        return "an encoder, in which tokens look ahead; its attention is not causal"
    odd = odd_layers(config)
    if odd is not None:
        return odd
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(model_class, "_is_stateful", False):
        return f"layers {_STATE}"
    if config.model_type not in TESTED and not getattr(model_class, "_supports_attention_backend", False):
        return "attention code of its own, in place of which attention over slots cannot be put"
    return None
