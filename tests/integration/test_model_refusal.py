"""What cannot be served is refused by name, with the feature that stands in the way, before weights are read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.integration.flat_batches import executor_of
from tests.integration.tiny_models import tiny_model
from worker.config import ModelConfig
from worker.errors import UnsupportedModelError
from worker.model.loading import load_model
from worker.model.probe import probe
from worker.model.progress import SilentProgress
from worker.model.rotary import pin_rotary
from worker.model.self_check import self_check

torch.set_num_threads(1)
STATE = "which keep a state"
OWN = "attention code of its own"
ENCODER_DECODER = "an encoder-decoder model"
ENCODER = "an encoder, in which tokens look ahead"
SENSES = "more than a language model"

# The feature that a family is refused for.
REFUSED: Mapping[str, str] = {
    "mamba": STATE, "mamba2": STATE, "falcon_mamba": STATE, "jamba": STATE, "bamba": STATE, "zamba": STATE,
    "zamba2": STATE, "falcon_h1": STATE, "nemotron_h": STATE, "granitemoehybrid": STATE, "recurrent_gemma": STATE,
    "rwkv": STATE, "xlstm": STATE, "qwen3_next": STATE, "qwen3_5_text": STATE, "minimax": STATE,
    "kimi_linear": STATE, "olmo_hybrid": STATE,
    "deepseek_v4": "compressed_sparse_attention",
    "deepseek_v32": "indexed_attention", "glm_moe_dsa": "indexed_attention",
    "llama4_text": "chunked_attention, which see a chunk of the text",
    "falcon": OWN, "bloom": OWN, "mpt": OWN, "gpt_neo": OWN, "xglm": OWN, "openai-gpt": OWN, "xlnet": OWN,
    "t5": ENCODER_DECODER, "bart": ENCODER_DECODER, "mbart": ENCODER_DECODER, "whisper": ENCODER_DECODER,
    "bert": ENCODER, "roberta": ENCODER, "electra": ENCODER,
    "gemma3": SENSES, "llava": SENSES, "qwen2_vl": SENSES, "qwen3_vl": SENSES, "mllama": SENSES, "paligemma": SENSES,
    "llama4": SENSES, "mistral3": SENSES, "gemma3n": SENSES,
    "vit": "no language model",
}  # fmt: skip


def folder_of(path: Path, model_type: str, **settings: Any) -> Path:
    """A model's folder, as far as it is looked at: weights and tokenizer are never opened."""
    AutoConfig.for_model(model_type, **settings).save_pretrained(path)
    for name in ("model.safetensors", "tokenizer.json"):
        (path / name).write_bytes(b"never read")
    return path


def load(folder: Path) -> None:
    load_model(ModelConfig(model=str(folder), threads=1, device="cpu", dtype="fp32"), SilentProgress())


@pytest.mark.parametrize(("family", "feature"), REFUSED.items(), ids=REFUSED)
def test_a_family_is_refused_by_name_for_its_feature(tmp_path: Path, family: str, feature: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load(folder_of(tmp_path, family))
    message = str(caught.value)
    assert message.startswith(f"{family}: ")
    assert feature in message
    assert "\n" not in message


def test_a_family_with_some_convolutions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^lfm2: layers of type conv, which keep their last inputs"):
        load(folder_of(tmp_path, "lfm2", layer_types=["conv", "full_attention"] * 8, num_hidden_layers=16))


def test_a_family_unknown_to_transformers_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "newer", "llama")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "from_tomorrow"}), encoding="utf-8")
    with pytest.raises(
        UnsupportedModelError, match=r"^newer: its configuration cannot be read: .*from_tomorrow[^\n]*$"
    ):
        load(folder)


def test_a_configuration_that_is_no_json_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "torn", "llama")
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match=r"^torn: its configuration cannot be read: [^\n]*$"):
        load(folder)


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("diffllama", {}, "a layer attends more than once"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "attention is not causal"),
        ("llama4_text", {"intermediate_size_mlp": 48, "num_local_experts": 2, "interleave_moe_layer_step": 1},
         "chunked_attention"),
        ("bloom", {"head_dim": None, "num_key_value_heads": None, "n_head": 4, "n_layer": 2}, OWN),
        ("mamba", {"head_dim": None, "num_key_value_heads": None, "num_attention_heads": None, "state_size": 4}, STATE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_only_a_forward_pass_shows_is_refused_by_the_probe(
    model_type: str, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"^{model_type}: .*{reason}"):
        probe(tiny_model(model_type, **settings))


def test_attention_that_takes_what_is_unknown_here_is_refused_with_its_names() -> None:
    model: Any = tiny_model("llama")
    more = {"position_bias": torch.zeros(1), "indices": torch.zeros(1)}
    model.model.layers[1].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | more), with_kwargs=True
    )
    with pytest.raises(
        UnsupportedModelError, match=r"^llama: attention takes arguments unknown here: indices, position_bias$"
    ):
        probe(model)


def test_a_definition_that_fails_over_more_tokens_is_refused_with_what_it_says() -> None:
    """Here for heads that its own attention cannot put together, which the probe has no need to."""
    model = tiny_model("minicpm3", head_dim=None, num_key_value_heads=2)
    executor = executor_of(model, num_slots=120)
    with pytest.raises(
        UnsupportedModelError, match=r"^minicpm3: a forward pass over 60 tokens fails: RuntimeError: The"
    ):
        self_check(model, executor, 60)


def test_rotation_that_looks_at_the_longest_sequence_in_some_layers_only_is_refused() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    model = tiny_model(
        "gemma3_text",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": dynamic, "sliding_attention": plain},
    )
    with pytest.raises(UnsupportedModelError, match="rotary embeddings of type dynamic for some layers only"):
        pin_rotary(model, 256)
