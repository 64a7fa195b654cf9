"""`radixgate size` says what a real worker allocates: the same bytes per token, the same slots, the same weights."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cli.config import config_from
from cli.main import main
from cli.size.report import toml_lines
from tests.integration.tiny_models import FAMILIES, tiny
from worker.model.choosing import layer_shapes
from worker.model.geometry import read_geometry
from worker.model.loading import LoadedModel
from worker.model.probe import probe
from worker.model.progress import SilentProgress
from worker.tiers import host_size

SOME = ("llama", "gpt2", "mixtral", "gemma2", "deepseek-v2", "gemma3n", "llama-dynamic", "gpt-oss", "qwen3-moe")


def sized(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["size", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@pytest.mark.model
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_worker_with_smollm2_has_the_slots_and_bytes_that_size_says(fp32_model: LoadedModel, page_size: int) -> None:
    values = sized(
        "--model", "smollm2-135m-instruct", "--device", "cpu", "--dtype", "fp32", "--device-memory", "4GiB",
        "--overhead", "2GiB", "--host-memory", "256MiB", "--page-size", str(page_size),
    )  # fmt: skip
    assert values["bytes_per_token"] == fp32_model.bytes_per_token
    assert values["context_length"] == fp32_model.info.context_length
    config = config_from(tomllib.loads("\n".join(toml_lines(values["settings"])))).worker
    assert config.model.model == "smollm2-135m-instruct"
    pool = fp32_model.pool(fp32_model.num_slots(config.cache))
    device, host, _ = values["tiers"]
    assert pool.num_slots == device["tokens"]
    assert (
        pool.num_slots * pool.bytes_per_token
        == sum(group.nbytes for group in pool.planes.groups)
        == device["num_bytes"]
    )
    assert host_size(config.cache, pool, 0).num_slots == host["tokens"]


@pytest.mark.model
def test_where_no_memory_is_named_the_pool_is_the_one_that_a_worker_takes_by_itself(fp32_model: LoadedModel) -> None:
    values = sized("--model", "smollm2-135m-instruct", "--device", "cpu", "--dtype", "fp32")
    by_itself = config_from({"worker": {"cache": {"memory_bytes": 1 << 30}}}).worker.cache
    assert values["tiers"][0]["tokens"] == fp32_model.num_slots(by_itself)


@pytest.mark.parametrize("family", [name for name in SOME if name in FAMILIES])
def test_shapes_and_parameters_read_from_a_configuration_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    model.config.save_pretrained(tmp_path)
    found = read_geometry(str(tmp_path), SilentProgress())
    assert found.layers == layer_shapes(probe(model))
    assert found.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert read_geometry(str(tmp_path / "config.json"), SilentProgress()).layers == found.layers


def test_a_worker_that_cannot_serve_a_model_is_not_sized(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    result = CliRunner().invoke(main, ["size", "--model", str(tmp_path)])
    assert result.exit_code == 1
    assert "state" in result.output


def test_geometry_leaves_no_weights_behind(tmp_path: Path) -> None:
    tiny("llama").config.save_pretrained(tmp_path)
    before = torch.get_default_device()
    read_geometry(str(tmp_path), SilentProgress())
    assert torch.get_default_device() == before
