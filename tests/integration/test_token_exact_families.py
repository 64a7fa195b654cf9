"""The cache changes no answer of any family: greedy output in fp32 equals `transformers` generate, token for token.

Each family is loaded as a worker loads it and put through a whole engine: prompts in chunks beside running sequences,
cold, warm, and sharing what they begin with; token by token and by pages; in native code, too, where there is any.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.exactness import Bench, own_namespaces
from tests.fakes.tiny_tokenizer import tiny_tokenizer_json
from tests.integration.flat_batches import generate_plain
from tests.integration.tiny_models import FAMILIES, WINDOW, tiny
from tests.native_kernels import require_kernels
from worker.config import ModelConfig
from worker.model import plain_decoder
from worker.model.families import TESTED
from worker.model.loading import LoadedModel, prepare
from worker.model.native_forward import NativeModel
from worker.model.probe import text_config
from worker.model.progress import SilentProgress
from worker.model.rotary import pin_rotary
from worker.model.sources import HuggingFaceFolder

torch.set_num_threads(1)
NUM_NEW = 8
CONTEXT = 256
NATIVE = [name for name, (model_type, _) in FAMILIES.items() if model_type in plain_decoder.FAMILIES]
WAYS = [*((name, "transformers") for name in FAMILIES), *((name, "native") for name in NATIVE)]


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Of several lengths, below a page and far beyond a window; they begin alike."""
    rng = np.random.default_rng(1)
    shared = rng.integers(3, 97, 21).tolist()
    longer = [(*shared, *rng.integers(3, 97, size).tolist()) for size in (12, 1, 50, 5)]
    return (*longer, tuple(shared[:9]))


@cache
def expected(name: str) -> tuple[tuple[int, ...], ...]:
    model = tiny(name)
    pin_rotary(model, CONTEXT)
    return tuple(tuple(generate_plain(model, prompt, NUM_NEW)) for prompt in prompts())


def load(name: str, forward: str, folder: Path) -> LoadedModel:
    if forward == "native":
        require_kernels()
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer_json())
    model = tiny(name)
    text_config(model).eos_token_id = None
    config = ModelConfig(dtype="fp32", device="cpu", threads=1, forward=forward)  # type: ignore[arg-type]
    return prepare(model, HuggingFaceFolder(name, folder, digest=name), config, SilentProgress())


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("name", "forward"), WAYS, ids=[f"{name}-in-{forward}" for name, forward in WAYS])
def test_answers_are_exact_cold_warm_and_shared(tmp_path: Path, name: str, forward: str, page_size: int) -> None:
    model = load(name, forward, tmp_path)
    assert isinstance(model.model, NativeModel) == (forward == "native")
    bench = Bench(model, num_slots=1_024, page_size=page_size, max_running=5, max_chunk_tokens=7, max_step_tokens=16)
    namespaces = own_namespaces(len(prompts()))
    cold = bench.answers(prompts(), namespaces, num_new=NUM_NEW)
    warm = bench.answers(prompts(), namespaces, num_new=NUM_NEW)
    shared = bench.answers(prompts(), num_new=NUM_NEW)

    assert [tuple(answer.token_ids) for answer in cold] == list(expected(name))
    assert [tuple(answer.token_ids) for answer in warm] == list(expected(name))
    assert [tuple(answer.token_ids) for answer in shared] == list(expected(name))
    assert [answer.cached for answer in cold] == [0] * len(prompts())
    assert [answer.cached for answer in warm] == [(len(p) - 1) // page_size * page_size for p in prompts()]
    assert sum(answer.cached for answer in shared) >= 2 * 16
    assert bench.observer.most_side_by_side > 2


@pytest.mark.parametrize("name", FAMILIES)
def test_random_weights_say_different_things_to_different_prompts(name: str) -> None:
    """Otherwise the comparison would prove nothing."""
    assert len(set(expected(name))) > 3


def test_prompts_are_longer_than_windows_and_shorter_than_pages() -> None:
    assert max(map(len, prompts())) > 3 * WINDOW
    assert min(map(len, prompts())) < 16


def test_the_list_of_tested_families_is_what_is_tested_here() -> None:
    assert {model_type for model_type, _ in FAMILIES.values()} == TESTED
    assert set(plain_decoder.FAMILIES) <= TESTED
