"""What a GGUF file says and how it comes: in parts, with scaled rotation, windows, several end tokens; or refused."""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.integration.test_model_loading import RecordedProgress, write_gguf
from worker.errors import UnsupportedModelError
from worker.model.gguf import converted
from worker.model.gguf_config import complete_config
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile, GgufParts, HuggingFaceFolder

torch.set_num_threads(1)


@pytest.fixture
def whole(tmp_path: Path) -> GgufFile:
    return GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def parts(tmp_path: Path, whole: GgufFile) -> GgufParts:
    content = whole.path.read_bytes()
    third = len(content) // 3
    paths = tuple(tmp_path / f"tiny.part{number}" for number in range(3))
    for path, begin, end in zip(paths, (0, third, 2 * third), (third, 2 * third, len(content)), strict=True):
        path.write_bytes(content[begin:end])
    return GgufParts("tiny", paths, hashlib.sha256(content).hexdigest())


def convert(source: GgufFile | GgufParts, cache: Path) -> HuggingFaceFolder:
    return converted(source, cache, SilentProgress())


def test_a_file_in_parts_is_the_model_that_the_whole_file_is(tmp_path: Path, whole: GgufFile, parts: GgufParts) -> None:
    one, other = convert(whole, tmp_path / "one"), convert(parts, tmp_path / "other")
    assert one.digest == other.digest
    for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


def test_parts_are_joined_once_and_leave_nothing_behind(tmp_path: Path, parts: GgufParts) -> None:
    first, second = RecordedProgress(), RecordedProgress()
    folder = converted(parts, tmp_path / "cache", first).path
    assert converted(parts, tmp_path / "cache", second).path == folder
    assert first.stages == ["Joining the parts of tiny", "Converting tiny (once)"]
    assert second.stages == []
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder]
    assert not list(folder.parent.rglob("*.gguf"))


def test_parts_that_are_altered_are_refused_and_nothing_is_kept(tmp_path: Path, parts: GgufParts) -> None:
    content = bytearray(parts.paths[1].read_bytes())
    content[100] ^= 1
    parts.paths[1].write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=r"^the parts of tiny are not what they should be: .*install them"):
        convert(parts, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_parts_in_another_order_are_refused(tmp_path: Path, parts: GgufParts) -> None:
    with pytest.raises(UnsupportedModelError, match="not what they should be"):
        convert(replace(parts, paths=parts.paths[::-1]), tmp_path / "cache")


# ------------------------------------------------------------------------------------------------------ what is said


def said(path: Path, family: str, fields: Mapping[str, Any], factors: np.ndarray | None = None) -> Path:
    """Write a file that says `fields` of a family, and has no weights beside the factors of rotary frequencies."""
    writer = gguf.GGUFWriter(path, family)
    for key, value in fields.items():
        if isinstance(value, str):
            writer.add_string(f"{family}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{family}.{key}", value)
        else:
            writer.add_uint32(f"{family}.{key}", value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def config(family: str, **settings: Any) -> PreTrainedConfig:
    made: PreTrainedConfig = AutoConfig.for_model(family, **settings)
    return made


def test_linear_scaling_of_gemma3_is_for_layers_that_see_everything(tmp_path: Path) -> None:
    read = config("gemma3_text")
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    complete_config(read, said(tmp_path / "f.gguf", "gemma3", scaling))
    assert (
        read.rope_parameters["full_attention"] | {"rope_type": "linear", "factor": 8.0}
        == (read.rope_parameters["full_attention"])
    )
    assert read.rope_parameters["sliding_attention"]["rope_type"] == "default"


def test_yarn_is_taken_with_the_length_it_starts_from(tmp_path: Path) -> None:
    read = config("qwen2")
    fields = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32_768}
    complete_config(read, said(tmp_path / "f.gguf", "qwen2", fields))
    theta = read.rope_parameters.pop("rope_theta")
    assert read.rope_parameters == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert theta == config("qwen2").rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "rotary embeddings scaled by longrope"),
        ({"rope.scaling.type": "linear"}, "rotary embeddings scaled by linear"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
          "rope.scaling.yarn_beta_fast": 16.0}, "scaled by yarn, yarn_beta_fast"),
        ({"attn_logit_softcapping": 30.0}, "its attn_logit_softcapping is 30.0, which llama has no place for"),
    ],
    ids=["longrope", "no factor", "more of yarn", "soft cap"],
)  # fmt: skip
def test_what_a_configuration_has_no_words_for_is_refused(
    tmp_path: Path, fields: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"^f.gguf: .*{reason}"):
        complete_config(config("llama"), said(tmp_path / "f.gguf", "llama", fields))


def test_windows_and_soft_caps_are_taken_from_the_file(tmp_path: Path) -> None:
    read = config("gemma2")
    fields = {"attention.sliding_window": 2048, "attn_logit_softcapping": 25.0, "final_logit_softcapping": 15.0}
    complete_config(read, said(tmp_path / "f.gguf", "gemma2", fields))
    assert (read.sliding_window, read.attn_logit_softcapping, read.final_logit_softcapping) == (2048, 25.0, 15.0)


@pytest.mark.parametrize(("layers", "scale"), [(46, 144), (42, 256)])
def test_the_largest_gemma2_scales_by_its_hidden_size(tmp_path: Path, layers: int, scale: int) -> None:
    read = config("gemma2", num_hidden_layers=layers, hidden_size=4608, num_attention_heads=32)
    complete_config(read, said(tmp_path / "f.gguf", "gemma2", {}))
    assert read.query_pre_attn_scalar == scale


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip


def llama(**rope: object) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2048, num_attention_heads=32, head_dim=64, max_position_embeddings=131_072, rope_parameters=rope
    )


def llama3_factors() -> np.ndarray:
    """What llama.cpp writes into files of Llama 3.2: plain frequencies over scaled ones."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](llama(**LLAMA3), torch.device("cpu"))
    plain = 500_000.0 ** -(np.arange(32) / 32)
    return np.asarray(plain / scaled.numpy())


def test_factors_of_llama3_are_recognised(tmp_path: Path) -> None:
    read = llama(rope_type="default", rope_theta=500_000.0)
    complete_config(read, said(tmp_path / "f.gguf", "llama", {}, llama3_factors()))
    assert read.rope_parameters == LLAMA3 | {"factor": pytest.approx(32.0)}


def test_other_factors_are_refused(tmp_path: Path) -> None:
    factors = llama3_factors()
    factors[20] *= 1.5
    with pytest.raises(UnsupportedModelError, match=r"^f.gguf: its factors of rotary frequencies are not those of"):
        complete_config(
            llama(rope_type="default", rope_theta=500_000.0), said(tmp_path / "f.gguf", "llama", {}, factors)
        )


@pytest.mark.parametrize(
    ("family", "reason"),
    [("mamba", "^mamba: .*keep a state"), ("falcon", "^falcon: attention code of its own"),
     ("t5", "^t5: an encoder-decoder model"), ("clip", r"f.gguf cannot be read as a GGUF model: [^\n]*clip[^\n]*\Z")],
)  # fmt: skip
def test_a_family_that_cannot_be_served_is_refused_before_it_is_converted(
    tmp_path: Path, family: str, reason: str
) -> None:
    sizes = {"block_count": 2, "embedding_length": 32, "attention.head_count": 4, "context_length": 64}
    path = said(tmp_path / "f.gguf", family, sizes)
    with pytest.raises(UnsupportedModelError, match=reason):
        convert(GgufFile("f", path), tmp_path / "cache")


# ------------------------------------------------------------------------------------------------------------ gemma 3


def write_gemma3(path: Path) -> Path:
    """Two layers, the second of which would see everything only from the sixth on; norms are stored with 1 added."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "ab", "  "]
    types = [3, 3, 3, 2, 3, *[6] * 256, *[1] * 5]
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(9)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {"attn_q": (64, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 64), "ffn_gate": (48, 32),
              "ffn_up": (48, 32), "ffn_down": (32, 48), "attn_norm": (32,), "post_attention_norm": (32,),
              "ffn_norm": (32,), "post_ffw_norm": (32,), "attn_q_norm": (16,), "attn_k_norm": (16,)}  # fmt: skip
    writer.add_tensor("token_embd.weight", rng.normal(size=(len(pieces), 32)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.full(32, 1.25, np.float32))
    for layer in range(2):
        for name, shape in shapes.items():
            weights = np.full(shape, 1.25) if "norm" in name else rng.normal(size=shape)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gemma3_keeps_its_norms_windows_rotation_and_both_end_tokens(tmp_path: Path) -> None:
    folder = convert(GgufFile("gemma", write_gemma3(tmp_path / "gemma.gguf")), tmp_path / "cache").path
    read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert read["model_type"] == "gemma3_text"
    assert (read["sliding_window"], read["layer_types"]) == (9, ["sliding_attention"] * 2)
    thetas = {kind: rope["rope_theta"] for kind, rope in read["rope_parameters"].items()}
    assert thetas == {"full_attention": 1e6, "sliding_attention": 1e4}
    weights = load_file(folder / "model.safetensors")
    norms = [tensor for name, tensor in weights.items() if "norm" in name]
    assert len(norms) == 13
    assert all(torch.equal(norm, torch.full_like(norm, 0.25)) for norm in norms)
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert ends == [1, 4]


def test_one_end_token_stays_a_number(tmp_path: Path, whole: GgufFile) -> None:
    folder = convert(whole, tmp_path / "cache").path
    assert json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == 2


def test_a_truncated_part_of_metadata_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 8) + b"general.")
    with pytest.raises(UnsupportedModelError, match=r"cut.gguf cannot be read as a GGUF model"):
        convert(GgufFile("cut", path), tmp_path / "cache")
