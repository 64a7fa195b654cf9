"""Reads from a model how each of its layers attends, and refuses by name what cannot be served.

A forward pass over two tokens shows more than a configuration says: which modules really call the attention
function, in which order, with which heads, dimensions and arguments. Field names differ between families; calls don't.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from worker.attention.backend import AttentionShape
from worker.errors import UnsupportedModelError
from worker.model.forward import handling_attention
from worker.model.refusal import odd_layers, one_line

# Arguments that carry nothing attention over slots would have to know.
_HARMLESS = frozenset({"position_ids", "use_cache", "output_router_logits", "output_attentions", "dropout"})
_UNDERSTOOD = frozenset({"scaling", "sliding_window", "softcap", "s_aux", "is_causal"})
# What definitions raise at something they cannot compute.
FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, ImportError, LookupError)


@dataclass(frozen=True, slots=True)
class ProbedLayer:
    module: nn.Module  # the one that calls attention
    shape: AttentionShape


@dataclass(frozen=True, slots=True)
class _Call:
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    arguments: Mapping[str, object]


@dataclass(slots=True)
class _Recorder:
    calls: list[_Call] = field(default_factory=list)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, object],
    ) -> Tensor:
        self.calls.append(_Call(module, query, key, value, mask, dict(arguments)))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration of the part that generates text."""
    return model.config.get_text_config(decoder=True)


def probe(model: PreTrainedModel) -> tuple[ProbedLayer, ...]:
    """Return the model's layers in the order they run. Raises UnsupportedModelError."""
    config = text_config(model)
    family = str(model.config.model_type)
    _refuse_layer_types(config, family)
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(f"{family}: its forward pass cannot restrict logits to the rows that sample")
    calls = _record(model, family)
    _refuse_missing_or_repeated(calls, config, family)
    return tuple(
        ProbedLayer(call.module, _shape(call, _window(call, index, config), family)) for index, call in enumerate(calls)
    )


def _record(model: PreTrainedModel, family: str) -> list[_Call]:
    recorder = _Recorder()
    tokens = torch.tensor([[1, 0]], device=model.device)
    try:
        with torch.inference_mode(), handling_attention(recorder):
            model(
                input_ids=tokens,
                position_ids=torch.tensor([[0, 1]], device=model.device),
                use_cache=False,
                logits_to_keep=torch.tensor([1], device=model.device),
            )
    except FORWARD_ERRORS as error:
        raise UnsupportedModelError(f"{family}: a forward pass without a cache fails: {one_line(error)}") from error
    return recorder.calls


def _refuse_layer_types(config: PreTrainedConfig, family: str) -> None:
    odd = odd_layers(config)
    if odd is not None:
        raise UnsupportedModelError(f"{family}: {odd}")


def _refuse_missing_or_repeated(calls: list[_Call], config: PreTrainedConfig, family: str) -> None:
    expected = int(config.num_hidden_layers)
    distinct = len({id(call.module) for call in calls})
    if not calls:
        raise UnsupportedModelError(
            f"{family}: no layer uses the attention interface (it has attention code of its own)"
        )
    if distinct < len(calls):
        raise UnsupportedModelError(f"{family}: a layer attends more than once in a forward pass")
    if distinct != expected:
        raise UnsupportedModelError(
            f"{family}: {distinct} of {expected} layers use the attention interface; the others keep state of "
            f"another kind (linear attention, state space, convolution)"
        )


def _window(call: _Call, index: int, config: PreTrainedConfig) -> int | None:
    """The rule that holds over all families: `layer_types` if there are any, else the argument.

    Never the module's own attribute: exaone4 has it on every layer and means it on some.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return _int(call.arguments.get("sliding_window"))
    return _int(config.sliding_window) if layer_types[index] == "sliding_attention" else None


def _shape(call: _Call, window: int | None, family: str) -> AttentionShape:
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    unknown = sorted(arguments.keys() - _HARMLESS - _UNDERSTOOD)
    if unknown:
        raise UnsupportedModelError(f"{family}: attention takes arguments unknown here: {', '.join(unknown)}")
    if call.mask is not None:
        raise UnsupportedModelError(f"{family}: the model builds an attention mask of its own")
    if arguments.get("is_causal") is False or getattr(call.module, "is_causal", True) is False:
        raise UnsupportedModelError(f"{family}: attention is not causal")
    query_heads, key_dim = call.query.shape[1], call.query.shape[3]
    scaling = _float(arguments.get("scaling"))
    return AttentionShape(
        query_heads=query_heads,
        kv_heads=call.key.shape[1],
        key_dim=key_dim,
        value_dim=call.value.shape[3],
        scaling=key_dim**-0.5 if scaling is None else scaling,
        window=window,
        softcap=_float(arguments.get("softcap")),
        has_sinks="s_aux" in arguments,
    )


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
