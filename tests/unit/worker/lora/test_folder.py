"""A PEFT folder is read as it is meant, or refused with the name of what is wrong."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.worker.lora.adapter_folders import (
    DOWN0,
    Q0,
    Q1,
    SETTINGS,
    TARGETS,
    tensor_name,
    tensors,
    write_folder,
    write_settings,
)
from worker.lora.errors import AdapterError
from worker.lora.folder import read_adapter
from worker.lora.weights import AdapterWeights

MAX_RANK = 4
Tensors = dict[str, Tensor]


def read(folder: Path, dtype: torch.dtype = torch.float32) -> AdapterWeights:
    return read_adapter(folder, TARGETS, dtype, MAX_RANK)


def refusal(folder: Path, dtype: torch.dtype = torch.float32) -> AdapterError:
    with pytest.raises(AdapterError) as refused:
        read(folder, dtype)
    return refused.value


# What is read


def test_weights_and_scale_are_those_of_the_folder(tmp_path: Path) -> None:
    adapter = read(write_folder(tmp_path))
    assert set(adapter.modules) == set(TARGETS)
    for path, module in adapter.modules.items():
        assert torch.equal(module.down, tensors()[tensor_name(path, "A")])
        assert torch.equal(module.up, tensors()[tensor_name(path, "B")])
        assert module.scale == 3.0


def test_weights_come_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    module = read(write_folder(tmp_path), torch.bfloat16).modules[Q0]
    assert module.down.dtype == module.up.dtype == torch.bfloat16
    assert module.down.is_contiguous()
    assert module.up.is_contiguous()


def test_a_rank_stabilised_adapter_is_scaled_by_the_root_of_its_rank(tmp_path: Path) -> None:
    assert read(write_folder(tmp_path, use_rslora=True)).modules[Q0].scale == pytest.approx(6 / 2**0.5)


def test_a_scale_is_that_of_the_first_pattern_that_fits_the_end_of_the_path(tmp_path: Path) -> None:
    patterns = {"layers.1.self_attn.q_proj": 10, "proj": 5, r"(q|k)_proj": 8}
    modules = read(write_folder(tmp_path, alpha_pattern=patterns)).modules
    # "proj" would have to be a whole part of the path.
    assert [modules[path].scale for path in (Q0, Q1, DOWN0)] == [4.0, 5.0, 3.0]


def test_a_module_may_have_a_rank_of_its_own(tmp_path: Path) -> None:
    weights = tensors()
    weights[tensor_name(Q1, "A")], weights[tensor_name(Q1, "B")] = torch.ones(3, 8), torch.ones(12, 3)
    module = read(write_folder(tmp_path, weights, rank_pattern={r"layers\.1\.self_attn\..*": 3})).modules[Q1]
    assert (module.rank, module.scale) == (3, 2.0)


def test_what_peft_assumes_where_nothing_is_said_is_assumed_here(tmp_path: Path) -> None:
    write_folder(tmp_path, tensors(rank=4))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    assert read(tmp_path).modules[Q0].scale == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"some_future_setting": None},
        {"some_future_setting": False},
        {"use_dora": None, "modules_to_save": [], "loftq_config": {}},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"layers_to_transform": [0, 1], "layers_pattern": "layers", "exclude_modules": "lm_head"},
    ],
)
def test_settings_without_effect_are_accepted(changes: dict[str, Any], tmp_path: Path) -> None:
    assert len(read(write_folder(tmp_path, **changes)).modules) == len(TARGETS)


def test_a_link_to_the_weights_is_followed(tmp_path: Path) -> None:
    """As in caches of models, where every file of a snapshot is one."""
    write_folder(tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to("blob")
    assert len(read(tmp_path).modules) == len(TARGETS)


# Revisions


def test_the_same_content_elsewhere_has_the_same_revision(tmp_path: Path) -> None:
    one = read(write_folder(tmp_path / "one", base_model_name_or_path="here", lora_dropout=0.3))
    backwards = dict(reversed(tensors().items()))
    assert read(write_folder(tmp_path / "other", backwards, lora_alpha=6.0)).revision == one.revision


def changed(change: Callable[[Tensors], object]) -> Tensors:
    weights = tensors()
    change(weights)
    return weights


def swap_first_layers(weights: Tensors) -> None:
    for part in ("A", "B"):
        one, other = tensor_name(Q0, part), tensor_name(Q1, part)
        weights[one], weights[other] = weights[other], weights[one]


@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        (changed(lambda weights: weights[tensor_name(Q0, "A")][0, 0].add_(1e-6)), {}),
        (changed(lambda weights: weights[tensor_name(Q1, "B")].neg_()), {}),
        (changed(swap_first_layers), {}),
        ({name: tensor for name, tensor in tensors().items() if Q1 not in name}, {}),
        (tensors(), {"lora_alpha": 6.5}),
        (tensors(), {"use_rslora": True}),
        (tensors(), {"alpha_pattern": {"down_proj": 1}}),
    ],
)
def test_another_weight_or_scale_makes_another_revision(
    weights: Tensors, settings: dict[str, Any], tmp_path: Path
) -> None:
    revision = read(write_folder(tmp_path / "one")).revision
    assert read(write_folder(tmp_path / "other", weights, **settings)).revision != revision


def test_the_revision_is_that_of_the_file_and_not_of_the_format_it_is_computed_in(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert read(tmp_path, torch.bfloat16).revision == read(tmp_path, torch.float32).revision


# What is refused: settings

PLAIN = {name: value for name, value in SETTINGS.items() if name != "peft_type"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("peft_type", "ADALORA", "ADALORA"),
        ("peft_type", None, "None"),
        ("task_type", "SEQ_CLS", "SEQ_CLS"),
        ("bias", "all", "all"),
        ("use_dora", True, "DoRA"),
        ("lora_bias", True, "bias"),
        ("modules_to_save", ["lm_head"], "lm_head"),
        ("trainable_token_indices", {"embed_tokens": [1]}, "single tokens"),
        ("target_parameters", ["experts.gate_up_proj"], "experts"),
        ("fan_in_fan_out", True, "Conv1D"),
        ("layer_replication", [[0, 1]], "repeating layers"),
        ("alora_invocation_tokens", [1, 2], "activated LoRA"),
        ("use_qalora", True, "QALoRA"),
        ("use_bdlora", {"nblocks": 2}, "block-diagonal"),
        ("arrow_config", {"top_k": 3}, "Arrow"),
        ("kasa_config", {"beta": 1e-4}, "KaSA"),
        ("velora_config", {"num_groups": 4}, "VeLoRA"),
        ("monteclora_config", {"num_samples": 8}, "MonteCLoRA"),
        ("ensure_weight_tying", True, "tying"),
        ("megatron_config", {"tensor_parallel": 2}, "Megatron"),
        ("loftq_config", {"loftq_bits": 4}, "LoftQ"),
        ("corda_config", {"corda_method": "ipm"}, "CorDA"),
        ("lora_ga_config", {"direction": "ArBr"}, "LoRA-GA"),
        ("init_lora_weights", "pissa", "pissa"),
        ("init_lora_weights", "pissa_niter_16", "pissa_niter_16"),
        ("init_lora_weights", "olora", "olora"),
        ("init_lora_weights", "corda", "corda"),
        ("init_lora_weights", "loftq", "loftq"),
        ("init_lora_weights", "lora_ga", "lora_ga"),
        ("init_lora_weights", 1, "1"),
        ("some_future_setting", True, "unknown setting"),
        ("some_future_setting", 0, "unknown setting"),
        ("some_future_setting", {"x": 1}, "unknown setting"),
        ("r", 0, "no rank"),
        ("r", -3, "no rank"),
        ("r", 2.0, "no rank"),
        ("r", True, "no rank"),
        ("r", "8", "no rank"),
        ("lora_alpha", float("nan"), "finite"),
        ("lora_alpha", float("inf"), "finite"),
        ("lora_alpha", "16", "finite"),
        ("lora_alpha", 10**400, "finite"),
        ("use_rslora", "yes", "neither true nor false"),
        ("rank_pattern", {"q_proj": 0}, "no rank"),
        ("rank_pattern", ["q_proj"], "no object"),
        ("alpha_pattern", {"q_proj": None}, "finite"),
        ("alpha_pattern", {"(q_proj": 3}, "no regular expression"),
        ("alpha_pattern", {"(a+)+b": 3}, "too long to match"),
        ("alpha_pattern", {".*.*.*.*.*x": 3}, "too long to match"),
        ("alpha_pattern", {".?" * 30 + "x": 3}, "too long to match"),
        ("alpha_pattern", {"(.|.)" * 30 + "x": 3}, "too long to match"),
        ("alpha_pattern", {f".*.*.*.*x{number}": 1 for number in range(9)}, "too long to match"),
        ("alpha_pattern", {str(number): 1 for number in range(5000)}, "5000 entries"),
    ],
)
def test_a_setting_is_refused_by_name(field: str, value: object, said: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    write_settings(tmp_path, **{field: value})
    refused = refusal(tmp_path)
    assert refused.field == field
    assert said in refused.message


def test_settings_that_name_no_kind_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN))
    assert refusal(tmp_path).field == "peft_type"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"\x80abc", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"r": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b"[1, 2]", "no object"),
        (b"null", "no object"),
        (b" " * ((1 << 20) + 1), "more than"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(content)
    refused = refusal(tmp_path)
    assert refused.field == "adapter_config.json"
    assert said in refused.message


# What is refused: weights


@dataclass(frozen=True)
class Odd:
    """A change to good weights, the field that the refusal names, and what it says."""

    change: Callable[[Tensors], object]
    field: str
    said: str


def put(name: str, tensor: Tensor) -> Callable[[Tensors], object]:
    return lambda weights: weights.update({name: tensor})


A0, B0 = tensor_name(Q0, "A"), tensor_name(Q0, "B")
ODD = {
    "no A": Odd(lambda weights: weights.pop(A0), f"{Q0}.lora_A", "missing"),
    "no B": Odd(lambda weights: weights.pop(B0), f"{Q0}.lora_B", "missing"),
    "nothing": Odd(lambda weights: weights.clear(), "adapter_model.safetensors", "no weights"),
    "A of another width": Odd(put(A0, torch.ones(2, 9)), f"{Q0}.lora_A", "[2, 9]"),
    "B of another height": Odd(put(B0, torch.ones(13, 2)), f"{Q0}.lora_B", "[13, 2]"),
    "ranks that differ": Odd(put(B0, torch.ones(12, 3)), f"{Q0}.lora_B", "[12, 3]"),
    "another rank than configured": Odd(put(A0, torch.ones(3, 8)), f"{Q0}.lora_A", "[3, 8]"),
    "three dimensions": Odd(put(A0, torch.ones(2, 8, 1)), A0, "3 dimensions"),
    "whole numbers": Odd(put(A0, torch.ones(2, 8, dtype=torch.int64)), A0, "int64"),
    "float64": Odd(put(A0, torch.ones(2, 8, dtype=torch.float64)), A0, "float64"),
    "not a number": Odd(put(A0, torch.full((2, 8), float("nan"))), f"{Q0}.lora_A", "not finite"),
    "infinite": Odd(put(B0, torch.full((12, 2), float("inf"))), f"{Q0}.lora_B", "not finite"),
    "DoRA": Odd(put(f"base_model.model.{Q0}.lora_magnitude_vector", torch.ones(12)), "magnitude", "DoRA"),
    "a bias": Odd(put(f"base_model.model.{Q0}.lora_B.bias", torch.ones(12)), "bias", "bias"),
    "an embedding": Odd(
        put("base_model.model.model.embed_tokens.lora_embedding_A", torch.ones(2, 97)), "embed_tokens", "embeddings"
    ),
    "a whole layer": Odd(
        put("base_model.model.lm_head.base_layer.weight", torch.ones(97, 8)), "lm_head", "whole layer"
    ),
    "a head": Odd(
        lambda weights: weights.update(
            {tensor_name("lm_head", "A"): torch.ones(2, 8), tensor_name("lm_head", "B"): torch.ones(97, 2)}
        ),
        "lm_head",
        "no linear layer inside",
    ),
    "an unknown tensor": Odd(put("lora_diag", torch.ones(2)), "lora_diag", "none of lora_A.weight and lora_B.weight"),
    "a name of its own": Odd(
        put(f"base_model.model.{Q0}.lora_A.default.weight", torch.ones(2, 8)), "default", "none of lora_A.weight"
    ),
    "a name without prefix": Odd(put(f"{Q0}.lora_A.weight", torch.ones(2, 8)), Q0, "none of lora_A.weight"),
}


@pytest.mark.parametrize("oddity", ODD)
def test_weights_that_are_odd_are_refused_by_name(oddity: str, tmp_path: Path) -> None:
    odd = ODD[oddity]
    weights = tensors()
    odd.change(weights)
    refused = refusal(write_folder(tmp_path, weights))
    assert odd.field in refused.field
    assert odd.said in refused.message


def test_a_rank_above_the_limit_is_refused(tmp_path: Path) -> None:
    refused = refusal(write_folder(tmp_path, tensors(rank=MAX_RANK + 1), r=MAX_RANK + 1))
    assert refused.field in TARGETS
    assert refused.message == "has rank 5, where at most 4 is allowed"


def test_a_weight_that_the_models_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    weights = changed(lambda weights: weights[A0].fill_(1e30))
    assert "not finite in torch.float16" in refusal(write_folder(tmp_path, weights), torch.float16).message


@pytest.mark.parametrize("alpha", [1e300, 1e39, -1e300])
def test_a_scale_that_no_pass_can_compute_with_is_refused(alpha: float, tmp_path: Path) -> None:
    refused = refusal(write_folder(tmp_path, lora_alpha=alpha))
    assert refused.field in TARGETS
    assert "lora_alpha" in refused.message


def test_weights_that_their_scale_makes_infinite_are_refused(tmp_path: Path) -> None:
    weights = changed(lambda weights: weights[B0].fill_(1e30))
    assert "not finite in torch.float32" in refusal(write_folder(tmp_path, weights, lora_alpha=1e20)).message


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    weights = {name.replace("model.layers", "transformer.h"): tensor for name, tensor in tensors().items()}
    refused = refusal(write_folder(tmp_path, weights))
    assert "made for another model" in refused.message
    assert Q0 in refused.message


# What is refused: files


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refusal(tmp_path / "nowhere").message


def test_a_path_that_nothing_can_have_is_refused() -> None:
    assert "can't be opened" in refusal(Path("a\0b")).message


def test_a_folder_without_settings_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).field == "adapter_config.json"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_settings(tmp_path)
    refused = refusal(tmp_path)
    assert refused.field == "adapter_model.safetensors"
    assert "missing" in refused.message


def test_pickled_weights_are_refused_unopened(tmp_path: Path) -> None:
    write_settings(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    refused = refusal(tmp_path)
    assert "adapter_model.bin is pickled" in refused.message
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_weights_that_are_cut_off_are_refused(keep: int, tmp_path: Path) -> None:
    weights = write_folder(tmp_path) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    refused = refusal(tmp_path)
    assert refused.field == "adapter_model.safetensors"
    assert "damaged" in refused.message


def test_weights_of_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    weights = write_folder(tmp_path) / "adapter_model.safetensors"
    weights.write_bytes(b"\xff" * 1000)
    assert "damaged" in refusal(tmp_path).message


def test_a_file_longer_than_any_adapter_is_refused_unread(tmp_path: Path) -> None:
    weights = write_folder(tmp_path) / "adapter_model.safetensors"
    os.truncate(weights, 1 << 40)  # with a hole: nothing of it is on the disk
    assert "bytes: more than" in refusal(tmp_path).message


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_settings(tmp_path)
    os.mkfifo(tmp_path / "adapter_model.safetensors")
    assert "no regular file" in refusal(tmp_path).message


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    write_settings(tmp_path)
    (tmp_path / "adapter_model.safetensors").mkdir()
    assert "can't be opened" in refusal(tmp_path).message


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    write_settings(tmp_path)
    (tmp_path / "adapter_model.safetensors").symlink_to("adapter_model.safetensors")
    assert "can't be opened" in refusal(tmp_path).message
