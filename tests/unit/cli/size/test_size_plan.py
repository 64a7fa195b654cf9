import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli.config import config_from
from cli.main import main
from cli.size.plan import DoesNotFitError, Geometry, Machine, NumberFormat, Traffic, plan
from cli.size.report import settings, toml_lines
from cli.size.speeds import Speeds, arrivals
from cli.size.units import parse_bytes, shown_bytes
from hicache.storage.frame import HEADER_BYTES
from hicache.tiers.shapes import LayerShape
from worker.model.memory import GIB, device_slots, host_slots

EIGHT_B = Geometry("8b", (LayerShape(8, 128, 128),) * 32, NumberFormat("bf16"), 8_030_000_000, 131_072)
GPU = Machine(device="cuda", device_bytes=80 * GIB, host_bytes=256 * GIB)
ARGUMENTS = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--parameters", "8.03e9")


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["size", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_token_of_an_eight_billion_model_takes_128_kib() -> None:
    assert EIGHT_B.bytes_per_token == 32 * 8 * 2 * 128 * 2 == 131_072


def test_weights_and_pool_together_fill_what_may_be_used_of_a_gpu() -> None:
    found = plan(EIGHT_B, GPU, Traffic())
    assert found.device_bytes_needed <= 0.9 * 80 * GIB < found.device_bytes_needed + found.bytes_per_token
    assert found.weight_bytes == 16_060_000_000


def test_on_a_cpu_everything_lies_in_one_memory() -> None:
    machine = Machine(device="cpu", device_bytes=64 * GIB, host_bytes=8 * GIB, overhead_bytes=GIB)
    found = plan(EIGHT_B, machine, Traffic())
    assert found.main_memory_bytes <= 0.9 * 64 * GIB < found.main_memory_bytes + found.bytes_per_token
    assert found.pinned_bytes == 0


def test_beside_a_gpu_weights_pass_through_main_memory_before_the_host_pool_is_made() -> None:
    small_pool = plan(EIGHT_B, dataclasses.replace(GPU, host_bytes=GIB), Traffic())
    assert small_pool.main_memory_bytes == small_pool.weight_bytes + 2 * GIB
    large_pool = plan(EIGHT_B, GPU, Traffic())
    assert large_pool.main_memory_bytes == 256 * GIB + 2 * GIB
    assert large_pool.pinned_bytes == 256 * GIB


def test_a_model_that_does_not_fit_is_refused_with_what_it_takes() -> None:
    with pytest.raises(
        DoesNotFitError, match=r"of 80\.00 GiB, 90% are 72\.00 GiB, and it takes 131\.50 GiB for weights"
    ):
        plan(dataclasses.replace(EIGHT_B, num_parameters=70_600_000_000), GPU, Traffic())


def test_storage_counts_whole_pages_with_their_headers() -> None:
    page = 64 * EIGHT_B.bytes_per_token + HEADER_BYTES
    found = plan(EIGHT_B, dataclasses.replace(GPU, storage_bytes=10 * page + page - 1), Traffic(context_tokens=128))
    storage = found.tiers[2]
    assert (storage.tokens, storage.conversations) == (640, 5)


def test_storage_needs_a_host_pool() -> None:
    with pytest.raises(DoesNotFitError, match="storage needs a host pool"):
        plan(EIGHT_B, dataclasses.replace(GPU, host_bytes=0, storage_bytes=GIB), Traffic())


def test_a_conversation_takes_whole_pages() -> None:
    found = plan(EIGHT_B, GPU, Traffic(context_tokens=100, page_size=64))
    assert found.tiers[0].conversations == found.tiers[0].tokens // 128
    assert found.tiers[0].tokens % 64 == 0


def test_floors_are_counted_as_the_cache_counts_them() -> None:
    found = plan(EIGHT_B, GPU, Traffic(floors={"acme": 0.25, "umbra": 0.1}, page_size=16))
    assert [floor.tenant for floor in found.floors] == ["acme", "umbra"]
    slots = found.tiers[0].tokens
    assert found.floors[0].device_slots == int(0.25 * slots) // 16 * 16


@given(
    pool=st.integers(20, 400), host=st.integers(0, 800), page_size=st.sampled_from([1, 8, 64]),
    storage=st.sampled_from([0, 1 << 40]), concurrent=st.integers(1, 600), on_gpu=st.booleans(),
)  # fmt: skip
def test_the_settings_that_are_printed_are_valid_and_give_a_worker_the_slots_that_are_printed(
    pool: int, host: int, page_size: int, storage: int, concurrent: int, on_gpu: bool
) -> None:
    machine = Machine(
        device="cuda" if on_gpu else "cpu", device_bytes=(pool + (0 if on_gpu else 2 * host)) * GIB,
        host_bytes=(host or 1) * GIB, storage_bytes=storage,
    )  # fmt: skip
    traffic = Traffic(page_size=page_size, concurrent=concurrent, floors={"a tenant": 0.25})
    found = plan(EIGHT_B, machine, traffic)
    text = "\n".join(toml_lines(settings(found, "smollm2-135m-instruct")))
    config = config_from(tomllib.loads(text)).worker
    size = EIGHT_B.bytes_per_token
    assert device_slots(config.cache, size, lambda: 0) == found.tiers[0].tokens
    told = host_slots(config.cache, num_slots=7, bytes_per_token=size, on_gpu=on_gpu, available_bytes=0)
    assert told.num_slots == found.tiers[1].tokens
    assert config.cache.shares["a tenant"].floor == 0.25
    assert config.engine.max_running >= concurrent
    assert (config.cache.storage.url is not None) == bool(storage)


def test_the_command_prints_tables_and_settings_that_check_accepts(tmp_path: Path) -> None:
    output = run(*ARGUMENTS, "--device-memory", "80GB", "--storage", "1TB", "--concurrent", "64", "--floor", "acme=0.2")
    assert "131,072 bytes" in output
    file = tmp_path / "sized.toml"
    file.write_text(output[output.index("[worker.model]") :])
    checked = CliRunner().invoke(main, ["worker", "--config", str(file), "--check"])
    assert checked.exit_code == 0, checked.output
    assert "max_running = 64" in checked.output


def test_json_says_the_same_as_the_table() -> None:
    values = json.loads(run(*ARGUMENTS, "--device-memory", "80GiB", "--context", "8000", "--json"))
    assert values["bytes_per_token"] == 131_072
    device = values["tiers"][0]
    assert device["conversations"] == device["tokens"] // 8000
    assert values["settings"]["worker"]["cache"]["num_slots"] == device["tokens"]
    assert f"{device['tokens']:,}" in run(*ARGUMENTS, "--device-memory", "80GiB", "--context", "8000")


def test_times_follow_from_speeds_and_without_speeds_nothing_is_said() -> None:
    assert arrivals(Speeds(), 131_072, 8000) == ()
    speeds = Speeds(
        prefill_tokens_per_s=10_000, copy_bytes_per_s=131_072 * 100_000, storage_bytes_per_s=131_072 * 50_000
    )
    compute, host, storage = arrivals(speeds, 131_072, 8000)
    assert [compute.seconds, host.seconds] == pytest.approx([0.8, 0.08])
    assert storage.seconds == pytest.approx(0.16 + 0.08)
    assert host.of_prefill is not None
    assert 0.099 < host.of_prefill < 0.101


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --model, or all of"),
        (("--layers", "2"), "give --model, or all of"),
        (("--model", "x", "--layers", "2"), "keep one of them"),
        (("--model", "/nowhere"), "is no model"),
        ((*ARGUMENTS, "--device-memory", "lots"), "is no amount of bytes"),
        ((*ARGUMENTS, "--floor", "acme"), "does not read TENANT=FRACTION"),
        ((*ARGUMENTS, "--floor", "a=0.5", "--floor", "b=0.5"), "together must be less than 1"),
        ((*ARGUMENTS, "--device-memory", "1MiB"), "nothing is left for KV"),
        ((*ARGUMENTS, "--device-memory", "80GiB", "--page-size", "48", "--storage", "1TB"), "must be a multiple"),
    ],
)
def test_faults_are_told_in_words(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["size", *arguments])
    assert result.exit_code != 0
    assert message in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_geometry_by_flags_needs_no_torch() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from cli.main import main;"
        f"result = CliRunner().invoke(main, ['size', *{ARGUMENTS!r}]);"
        "sys.exit(result.exit_code or ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("1024", 1024), ("80GiB", 80 << 30), ("80GB", 80 * 10**9), ("512Mi", 512 << 20), ("1.5TiB", 3 << 39),
     ("25GB/s", 25 * 10**9), ("x", None), ("1Q", None), ("5i", None), ("", None)],
)  # fmt: skip
def test_amounts_have_units(text: str, num_bytes: int | None) -> None:
    assert parse_bytes(text) == num_bytes


@given(st.integers(0, 1 << 59))
def test_an_amount_that_is_shown_reads_back_as_nearly_the_same(num_bytes: int) -> None:
    read = parse_bytes(shown_bytes(num_bytes).replace(",", ""))
    assert read is not None
    assert read == pytest.approx(num_bytes, rel=0.005)
