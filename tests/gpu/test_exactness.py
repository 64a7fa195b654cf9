"""Greedy output in fp32 on a GPU equals `transformers` generate on the CPU, with every backend and from every tier."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.exactness import NUM_NEW, Bench, assert_exact, token_ids
from tests.gpu.device import CUDA, ON_CUDA
from tests.reference import Reference, greedy_reference, prompts
from tests.tiered import TieredBench
from worker.attention.registry import available_backends, backend_names
from worker.config import CacheConfig, ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

pytestmark = [*ON_CUDA, pytest.mark.model, pytest.mark.timeout(240)]

NUM_PROMPTS = 16
FEW_NEW = 8  # tokens, where the prompts are what matters
NUM_SLOTS, FEW_SLOTS, HOST_SLOTS = 4_096, 512, 8_192


@pytest.fixture(scope="module", params=backend_names())
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """The real model with one backend after the other; in fp32 FlashInfer's hands every layer to its fall-back."""
    if request.param not in available_backends(CUDA):
        pytest.skip(f"{request.param} is not available here")
    assert not torch.backends.cuda.matmul.allow_tf32
    yield load_model(ModelConfig(device=str(CUDA), dtype="fp32", attention=request.param), SilentProgress())
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> list[Reference]:
    return greedy_reference(model, prompts(NUM_PROMPTS), max_new_tokens=NUM_NEW)


def test_cold_and_warm_all_at_once(model: LoadedModel, reference: list[Reference]) -> None:
    bench = Bench(model, num_slots=NUM_SLOTS, max_running=NUM_PROMPTS)
    cold = bench.answers(token_ids(reference))
    warm = bench.answers(token_ids(reference))

    assert_exact(cold, reference)
    assert_exact(warm, reference)
    assert all(answer.cached == len(each.prompt_token_ids) - 1 for answer, each in zip(warm, reference, strict=True))


def test_prefilled_in_chunks(model: LoadedModel, reference: list[Reference]) -> None:
    assert_exact(Bench(model, num_slots=NUM_SLOTS, max_chunk_tokens=17).answers(token_ids(reference)), reference)


@pytest.mark.parametrize("write_policy", ["write_back", "write_through"])
def test_loaded_back_from_the_host(model: LoadedModel, reference: list[Reference], write_policy: str) -> None:
    config = CacheConfig(
        num_slots=FEW_SLOTS,
        host_slots=HOST_SLOTS,
        write_policy=write_policy,  # type: ignore[arg-type]
        low_watermark=0.5,
        high_watermark=0.7,
        load_back_threshold=1,
    )
    expected = [replace(each, token_ids=each.token_ids[:FEW_NEW], margins=each.margins[:FEW_NEW]) for each in reference]
    with TieredBench(model, config, max_running=4) as bench:
        assert bench.tiers.host_pool is not None
        assert bench.tiers.host_pool.pinned, bench.tiers.host_pool.unpinned_reason
        cold = bench.answers(token_ids(expected), num_new=FEW_NEW, at_once=True)
        warm = bench.answers(token_ids(expected), num_new=FEW_NEW)
        together = bench.answers(token_ids(expected), num_new=FEW_NEW, at_once=True)
        bench.settle()
        bench.cache.check()

        for answers in (cold, warm, together):
            assert_exact(answers, expected)
        assert bench.stats.loaded_tokens > 0
        assert bench.stats.load_failures == bench.stats.mirror_failures == bench.stats.stalls == 0
