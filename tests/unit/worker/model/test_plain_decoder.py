"""Which models are plain decoders: whatever native code would not compute is named, and nothing is packed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.integration.tiny_models import tiny, tiny_model
from tests.native_kernels import RUNNABLE, require_kernels
from worker.model.linears import pack_linears
from worker.model.plain_decoder import FAMILIES, NotPlainError, plain_decoder
from worker.model.probe import ProbedLayer, probe
from worker.native.library import NumberFormat

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")
Probed = tuple[ProbedLayer, ...]


def pack(model: Any, probed: Probed | None = None) -> None:
    plain_decoder(model, probe(model) if probed is None else probed, require_kernels(), threads=1)


@pytest.mark.parametrize("family", ["gemma2", "qwen3-moe", "gpt-oss", "phi3-window", "olmo2", "gpt2"])
def test_another_family_is_named_with_those_that_are_known(family: str) -> None:
    model = tiny(family)
    known = "granite, llama, mistral, qwen2, qwen3, smollm3"
    with pytest.raises(NotPlainError, match=f"^{model.config.model_type} is none of {known}$"):
        pack(model)
    assert sorted(FAMILIES) == known.split(", ")


def head_with_bias(model: Any) -> None:
    model.lm_head = nn.Linear(32, 97, bias=True)


def longer_head(model: Any) -> None:
    model.lm_head = nn.Linear(32, 98, bias=False)


def shorter_vocabulary(model: Any) -> None:
    model.config.vocab_size = 98


def other_norm(model: Any) -> None:
    model.model.layers[1].input_layernorm = nn.LayerNorm(32)


def other_last_norm(model: Any) -> None:
    model.model.norm = nn.Identity()


def other_epsilon(model: Any) -> None:
    model.model.layers[2].post_attention_layernorm.variance_epsilon = 1e-3


def own_linear(model: Any) -> None:
    class Scaled(nn.Linear):
        pass

    model.model.layers[0].mlp.down_proj = Scaled(48, 32, bias=False)


def linear_of_another_dtype(model: Any) -> None:
    model.model.layers[0].self_attn.v_proj.to(torch.float64)


def transposed_weights(model: Any) -> None:
    linear = model.model.layers[0].self_attn.o_proj
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t(), requires_grad=False)


def bias_of_one(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.bias = nn.Parameter(torch.zeros(32), requires_grad=False)


def own_embedding(model: Any) -> None:
    class Scaled(nn.Embedding):
        pass

    model.model.embed_tokens = Scaled(97, 32)


def short_embedding(model: Any) -> None:
    model.model.embed_tokens = nn.Embedding(96, 32)


def narrow_embedding(model: Any) -> None:
    model.model.embed_tokens = nn.Embedding(97, 30)


def other_activation(model: Any) -> None:
    model.config.hidden_act = "relu"


def dynamic_rotation(model: Any) -> None:
    model.model.rotary_emb.rope_type = "dynamic"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (head_with_bias, "the head has a bias"),
        (longer_head, "a head of 98 outputs, where the vocabulary has 97"),
        (shorter_vocabulary, "a head of 97 outputs, where the vocabulary has 98"),
        (other_norm, "a norm of type LayerNorm"),
        (other_last_norm, "a norm of type Identity"),
        (other_epsilon, "norms with different epsilons"),
        (own_linear, "a linear layer of type Scaled"),
        (pack_linears, "a linear layer of type PackedLinear"),
        (linear_of_another_dtype, "a linear layer of type Linear"),
        (transposed_weights, "weights that are not contiguous"),
        (bias_of_one, "some of the stacked layers have a bias"),
        (own_embedding, "an embedding of type Scaled"),
        (short_embedding, r"embeddings \[96, 32\], where \[97, 32\] are looked up"),
        (narrow_embedding, r"embeddings \[97, 30\], where \[97, 32\] are looked up"),
        (other_activation, "activation relu"),
        (dynamic_rotation, "rotary frequencies that change with the length"),
    ],
)
def test_what_is_odd_is_named(change: Callable[[Any], object], reason: str) -> None:
    model = tiny("llama")
    probed = probe(model)
    pack(model, probed)
    change(model)
    with pytest.raises(NotPlainError, match=f"^{reason}$"):
        pack(model, probed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layers: layers[:-1], "3 layers, of which 2 attend"),
        (lambda layers: layers[::-1], "another module attends than the layer's own"),
        (lambda layers: [replace(p, shape=replace(p.shape, has_sinks=True)) for p in layers], "attention with sinks"),
        (lambda layers: [replace(p, shape=replace(p.shape, key_dim=7)) for p in layers], "heads of an odd dimension"),
        (lambda layers: [replace(p, shape=replace(p.shape, value_dim=9)) for p in layers], "heads of an odd dimension"),
    ],
)
def test_layers_that_attend_in_an_odd_way_are_named(change: Callable[[Probed], Probed], reason: str) -> None:
    model = tiny("llama")
    with pytest.raises(NotPlainError, match=f"^{reason}$"):
        pack(model, change(probe(model)))


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [({"intermediate_size": 45}, 45), ({"hidden_size": 33, "num_attention_heads": 3, "num_key_value_heads": 1}, 33)],
    ids=str,
)
def test_layers_of_an_odd_number_of_inputs_are_named(settings: dict[str, int], inputs: int) -> None:
    with pytest.raises(NotPlainError, match=f"^a linear layer of {inputs} inputs$"):
        pack(tiny_model("llama", **settings))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_numbers_that_native_code_does_not_compute_in_are_named(dtype: torch.dtype) -> None:
    model: Any = tiny("llama")
    probed = probe(model)
    with pytest.raises(NotPlainError, match=f"don't compute in {dtype}"):
        pack(model.to(dtype), probed)


@pytest.mark.parametrize("variant", RUNNABLE, ids=lambda variant: variant.name)
def test_a_processor_without_bfloat16_packs_no_model_in_it(variant: Any) -> None:
    native = require_kernels(variant)
    model: Any = tiny("llama")
    probed = probe(model)
    model.to(torch.bfloat16)
    if native.has_format(NumberFormat.BFLOAT16):
        plain_decoder(model, probed, native, threads=1)
    else:
        with pytest.raises(NotPlainError, match=f"kernels for {variant.name} don't compute in torch.bfloat16"):
            plain_decoder(model, probed, native, threads=1)
