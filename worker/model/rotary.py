"""Pins rotary embeddings that would look at the longest request of a batch.

`dynamic` and `longrope` choose their frequencies in each forward pass, from the largest position they see. In a flat
batch one long request would change the rotation of all others, whose cached keys lie on the old one. So the choice
is made once, for the longest sequence that the model may be given.
"""

from typing import Any

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.errors import UnsupportedModelError


def pin_rotary(model: nn.Module, context_length: int) -> bool:
    """Fix the frequencies for sequences of up to `context_length` tokens; return whether there was one to fix.

    Raises UnsupportedModelError where they depend on the kind of layer as well.
    """
    pinned = False
    for name, module in model.named_modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, str) and _looks_at_positions(rope_type):
            _pin(module, rope_type, context_length)
            pinned = True
        elif isinstance(rope_type, dict):
            odd = sorted({kind for kind in rope_type.values() if _looks_at_positions(kind)})
            if odd:
                raise UnsupportedModelError(f"{name}: rotary embeddings of type {', '.join(odd)} for some layers only")
    return pinned


def _looks_at_positions(rope_type: str) -> bool:
    return rope_type == "longrope" or "dynamic" in rope_type


def _pin(module: Any, rope_type: str, context_length: int) -> None:
    device = module.inv_freq.device
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](module.config, device, seq_len=context_length)
    module.register_buffer("inv_freq", inv_freq, persistent=False)
    module.register_buffer("original_inv_freq", inv_freq.clone(), persistent=False)
    module.attention_scaling = scaling
    # The definition's own update looks at this name, and leaves "default" alone.
    module.rope_type = "default"
