"""Recognises models that are plain decoders, and packs their weights for native code.

A plain decoder is what most families are: norm, attention, norm, gated layers, each added to what came before. Whether
a model is one is read off its modules, part by part; what is odd is named, and such a model runs as transformers
defines it. Whoever uses the result compares it with that definition first (`worker.model.self_check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from worker.attention.native_backend import native_shape, number_format
from worker.lora.targets import linear_targets
from worker.lora.weights import Targets
from worker.model.probe import ProbedLayer, text_config
from worker.native import structures
from worker.native.library import Handle, Kernels, NumberFormat, Pointers, Weights

# Those that consist of the parts below and of nothing else, as far as the modules show.
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"})
_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}


class NotPlainError(Exception):
    """The model is no plain decoder; the message says what is odd."""


@dataclass(slots=True, eq=False)
class PlainDecoder:
    """A decoder in native code, with all that it points to. Its steps must not overlap."""

    native: Kernels
    number: NumberFormat
    decoder: Handle
    vocab_size: int
    num_layers: int
    targets: Targets  # what adapters may change
    borrowed: list[object] = field(default_factory=list)

    @staticmethod
    def path(layer: int, module: str) -> str:
        """Return the path in the model of a layer's module, which is given by its path in the layer."""
        return f"model.layers.{layer}.{module}"

    def interleaved(self, gates: Pointers, ups: Pointers) -> Pointers:
        """Return the rows of gates and of as many ups as native code wants them."""
        return interleaved(gates, ups, self.native.panel)


def plain_decoder(model: PreTrainedModel, layers: Sequence[ProbedLayer], native: Kernels, threads: int) -> PlainDecoder:
    """Pack `model`, which isn't needed any more then. Raises NotPlainError, and NativeError if there is no memory."""
    return _Packing(model, native, threads).decoder(layers)


def interleaved(gates: Pointers, ups: Pointers, panel: int) -> Pointers:
    """Panels of half gates and half ups, as native code wants them; what is missing in the last one is zeros."""
    half = panel // 2
    size = len(gates)
    panels = -(-size // half)
    rows = np.zeros((panels * half, 2), dtype=np.uint64)
    rows[:size, 0], rows[:size, 1] = gates, ups
    return rows.reshape(panels, half, 2).transpose(0, 2, 1).reshape(-1)


def row_addresses(matrix: Tensor) -> Pointers:
    """The address of each row of a contiguous matrix, which must live on."""
    step = matrix.shape[1] * matrix.element_size()
    return matrix.data_ptr() + np.arange(len(matrix), dtype=np.uint64) * np.uint64(step)


class _Packing:
    """Reads one model. What is packed or copied is kept in `_borrowed`."""

    def __init__(self, model: PreTrainedModel, native: Kernels, threads: int) -> None:
        family = str(model.config.model_type)
        if family not in FAMILIES:
            raise NotPlainError(f"{family} is none of {', '.join(sorted(FAMILIES))}")
        try:
            self._number = number_format(native, model.dtype)
        except ValueError as error:
            raise NotPlainError(str(error)) from error
        self._model: Any = model
        self._config: Any = text_config(model)
        self._native = native
        self._threads = threads
        self._borrowed: list[object] = []
        self._frequencies: dict[int, int] = {}  # pointer by identity of the rotary module

    def decoder(self, layers: Sequence[ProbedLayer]) -> PlainDecoder:
        body = self._model.model
        if len(body.layers) != len(layers):
            raise NotPlainError(f"{len(body.layers)} layers, of which {len(layers)} attend")
        head = self._head(self._model.lm_head)
        embedding = self._embedding(body.embed_tokens)
        decoder = self._native.decoder(
            self._number,
            self._shape(),
            [self._layer(layer, probed) for layer, probed in zip(body.layers, layers, strict=True)],
            embedding=embedding,
            last_norm=self._norm(body.norm),
            head=head,
        )
        return PlainDecoder(
            self._native,
            self._number,
            decoder,
            int(self._config.vocab_size),
            len(layers),
            linear_targets(self._model),
            self._borrowed,
        )

    def _shape(self) -> structures.DecoderShape:
        config = self._config
        activation = _ACTIVATIONS.get(config.hidden_act)
        if activation is None:
            raise NotPlainError(f"activation {config.hidden_act}")
        return structures.DecoderShape(
            config.hidden_size,
            config.intermediate_size,
            config.vocab_size,
            activation,
            config.rms_norm_eps,
            float(getattr(config, "embedding_multiplier", 1.0)),
            float(getattr(config, "residual_multiplier", 1.0)),
            1.0 / float(getattr(config, "logits_scaling", 1.0)),
        )

    def _head(self, head: Any) -> Weights:
        weights = self._linear(head)
        if head.bias is not None:
            raise NotPlainError("the head has a bias")
        if head.out_features != self._config.vocab_size:
            raise NotPlainError(
                f"a head of {head.out_features} outputs, where the vocabulary has {self._config.vocab_size}"
            )
        return weights

    def _embedding(self, module: Any) -> int:
        if type(module) is not nn.Embedding or module.weight.dtype != self._model.dtype:
            raise NotPlainError(f"an embedding of type {type(module).__name__}")
        vocab_size, hidden = self._config.vocab_size, self._config.hidden_size
        if module.num_embeddings < vocab_size or module.embedding_dim != hidden:  # nobody would notice what lies behind
            raise NotPlainError(f"embeddings {list(module.weight.shape)}, where [{vocab_size}, {hidden}] are looked up")
        embedding = module.weight.detach().clone(memory_format=torch.contiguous_format)
        self._borrowed.append(embedding)
        return embedding.data_ptr()

    def _layer(self, layer: Any, probed: ProbedLayer) -> structures.LayerParts:
        if id(probed.module) != id(layer.self_attn):
            raise NotPlainError("another module attends than the layer's own")
        attention: Any = layer.self_attn
        mlp, shape = layer.mlp, probed.shape
        if shape.has_sinks:
            raise NotPlainError("attention with sinks")
        if shape.key_dim % 2 or shape.value_dim % 2:
            raise NotPlainError("heads of an odd dimension")
        rotates = bool(getattr(attention, "use_rope", True))
        frequencies = self._rotation() if rotates else 0
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        gates = (mlp.gate_proj, mlp.up_proj)
        return structures.LayerParts(
            input_norm=self._norm(layer.input_layernorm),
            qkv=self._stacked(projections).address,
            qkv_bias=self._bias(projections),
            query_norm=self._norm(attention.q_norm) if hasattr(attention, "q_norm") else 0,
            key_norm=self._norm(attention.k_norm) if hasattr(attention, "k_norm") else 0,
            frequencies=frequencies,
            rotated=2 * len(self._model.model.rotary_emb.inv_freq) if rotates else 0,
            rotation_scale=float(self._model.model.rotary_emb.attention_scaling),
            out=self._linear(attention.o_proj).address,
            out_bias=self._bias((attention.o_proj,)),
            second_norm=self._norm(layer.post_attention_layernorm),
            gate_up=self._interleaved(*gates).address,
            gate_up_bias=self._bias(gates),
            down=self._linear(mlp.down_proj).address,
            down_bias=self._bias((mlp.down_proj,)),
            attention=native_shape(shape),
        )

    def _rotation(self) -> int:
        """Where the frequencies are. One place for all layers: what is the same is computed once for each row."""
        rotary = self._model.model.rotary_emb
        if id(rotary) not in self._frequencies:
            if "dynamic" in str(getattr(rotary, "rope_type", "")):
                raise NotPlainError("rotary frequencies that change with the length")
            self._frequencies[id(rotary)] = self._floats(rotary.inv_freq)
        return self._frequencies[id(rotary)]

    def _norm(self, module: nn.Module) -> int:
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(module.weight, Tensor):
            raise NotPlainError(f"a norm of type {type(module).__name__}")
        if getattr(module, "variance_epsilon", None) != self._config.rms_norm_eps:
            raise NotPlainError("norms with different epsilons")
        return self._floats(module.weight)

    def _linear(self, linear: nn.Module) -> Weights:
        return self._packed(self._rows(linear), linear)

    def _stacked(self, linears: Sequence[nn.Module]) -> Weights:
        return self._packed(np.concatenate([self._rows(linear) for linear in linears]), linears[0])

    def _interleaved(self, gate: nn.Module, up: nn.Module) -> Weights:
        return self._packed(interleaved(self._rows(gate), self._rows(up), self._native.panel), gate)

    def _packed(self, rows: Pointers, like: nn.Module) -> Weights:
        inputs = int(like.in_features)  # type: ignore[arg-type]
        if inputs % 2:
            raise NotPlainError(f"a linear layer of {inputs} inputs")
        weights = self._native.pack(self._number, np.ascontiguousarray(rows), inputs, self._threads)
        self._borrowed.append(weights)
        return weights

    def _rows(self, linear: nn.Module) -> Pointers:
        """The address of each output's weights, in a tensor that lives while this object does."""
        if type(linear) is not nn.Linear or linear.weight.dtype != self._model.dtype:
            raise NotPlainError(f"a linear layer of type {type(linear).__name__}")
        weight = linear.weight.detach()
        if weight.stride() != (linear.in_features, 1):
            raise NotPlainError("weights that are not contiguous")
        return row_addresses(weight)

    def _bias(self, linears: Sequence[nn.Module]) -> int:
        biases = [linear.bias for linear in linears if isinstance(linear.bias, Tensor)]
        if not biases:
            return 0
        if len(biases) < len(linears):
            raise NotPlainError("some of the stacked layers have a bias")
        return self._floats(torch.cat([bias.detach().float() for bias in biases]))

    def _floats(self, tensor: Tensor) -> int:
        """Keep a copy in float32; return its address."""
        copied: NDArray[np.float32] = tensor.detach().float().numpy().copy()
        self._borrowed.append(copied)
        return int(copied.ctypes.data)
