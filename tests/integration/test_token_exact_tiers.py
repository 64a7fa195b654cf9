"""Greedy output in fp32 equals `transformers` generate whatever tier a prefix comes back from, and whatever goes wrong
there: the same answers, at worst with a shorter hit.
"""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.driver import Answer
from tests.exactness import assert_exact, token_ids
from tests.reference import Reference
from tests.tiered import TieredBench
from worker.config import CacheConfig, StorageConfig
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_PROMPTS, NUM_STORED, NUM_NEW = 12, 8, 4
DEVICE_SLOTS, HOST_SLOTS = 512, 8_192
PAGE = 16


def beginnings(references: Sequence[Reference]) -> list[Reference]:
    """The first tokens of some answers: what is decoded is computed from what was loaded, with the first one."""
    return [
        replace(each, token_ids=each.token_ids[:NUM_NEW], margins=each.margins[:NUM_NEW])
        for each in references[:NUM_PROMPTS]
    ]


def hits(answers: Sequence[Answer], tier: str) -> int:
    """Tokens of all prompts that came from a tier."""
    return sum(getattr(answer.admission.hit, tier) for answer in answers if answer.admission is not None)


def assert_adds_up(answers: Sequence[Answer], references: Sequence[Reference]) -> None:
    for answer, expected in zip(answers, references, strict=True):
        assert answer.admission is not None
        hit = answer.admission.hit
        prompt_tokens = hit.device + hit.host + hit.storage + answer.admission.computed_tokens
        assert prompt_tokens == answer.admission.prompt_tokens == len(expected.prompt_token_ids)


@pytest.mark.parametrize(("page_size", "write_policy"), [(1, "write_back"), (16, "write_back"), (1, "write_through")])
def test_with_a_device_too_small_for_what_is_asked_again(
    fp32_model: LoadedModel, reference: list[Reference], page_size: int, write_policy: str
) -> None:
    expected = beginnings(reference)
    config = CacheConfig(
        num_slots=DEVICE_SLOTS,
        host_slots=HOST_SLOTS,
        page_size=page_size,
        write_policy=write_policy,  # type: ignore[arg-type]
        low_watermark=0.5,
        high_watermark=0.7,
        load_back_threshold=1,
    )
    with TieredBench(fp32_model, config, max_running=4) as bench:
        cold = bench.answers(token_ids(expected), num_new=NUM_NEW, at_once=True)
        warm = bench.answers(token_ids(expected), num_new=NUM_NEW)
        lost = bench.stats.lost_tokens  # by a mirror that did not keep up: as many as the machine's other load makes it
        together = bench.answers(token_ids(expected), num_new=NUM_NEW, at_once=True)
        bench.cache.check()

        assert_exact(cold, expected)
        assert_exact(warm, expected)
        assert_exact(together, expected)
        assert_adds_up(warm, expected)
        assert hits(cold, "device") + hits(cold, "host") < sum(len(each.prompt_token_ids) for each in expected) / 2
        assert hits(warm, "host") + lost > sum(len(each.prompt_token_ids) for each in expected) / 2
        assert hits(together, "host") > 0
        assert bench.stats.loaded_tokens >= hits(warm, "host")


def stored(url: str) -> CacheConfig:
    storage = StorageConfig(url=url, page_size=PAGE, prefetch_timeout_s=30.0)
    return CacheConfig(
        num_slots=4 * DEVICE_SLOTS, host_slots=HOST_SLOTS, load_back_threshold=1, low_watermark=0.5, high_watermark=0.7,
        storage=storage,
    )  # fmt: skip


def live_and_leave(model: LoadedModel, expected: Sequence[Reference], config: CacheConfig) -> None:
    """A worker's life that ends in good order."""
    with TieredBench(model, config, max_running=4) as first:
        assert_exact(first.answers(token_ids(expected), num_new=NUM_NEW, at_once=True), expected)
        first.flush()
        assert first.stats.saved_pages > 0


@pytest.fixture(scope="module")
def left_behind(fp32_model: LoadedModel, reference: list[Reference], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pages that a worker left. To be copied."""
    folder = tmp_path_factory.mktemp("pages")
    live_and_leave(fp32_model, beginnings(reference)[:NUM_STORED], stored(folder.as_uri()))
    return folder


@pytest.fixture
def folder(left_behind: Path, tmp_path: Path) -> Path:
    """A copy of what a worker left."""
    return shutil.copytree(left_behind, tmp_path / "pages")


def live_again(
    model: LoadedModel, expected: Sequence[Reference], config: CacheConfig
) -> tuple[list[Answer], TieredBench]:
    """What another worker answers from what is stored."""
    with TieredBench(model, config, max_running=4) as second:
        answers = second.answers(token_ids(expected), num_new=NUM_NEW)
        second.settle()
        second.cache.check()
    assert_exact(answers, expected)
    assert_adds_up(answers, expected)
    return answers, second


def all_pages(expected: Sequence[Reference]) -> int:
    """Tokens that storage can bring: whole pages, and never a prompt's last token."""
    return sum((len(each.prompt_token_ids) - 1) // PAGE * PAGE for each in expected)


def test_after_a_restart_from_files(fp32_model: LoadedModel, reference: list[Reference], folder: Path) -> None:
    expected = beginnings(reference)[:NUM_STORED]
    answers, second = live_again(fp32_model, expected, stored(folder.as_uri()))

    found = hits(answers, "storage") + hits(answers, "host") + hits(answers, "device")
    assert hits(answers, "storage") > 0
    assert found >= all_pages(expected)
    assert second.stats.failed_fetches == second.stats.late_fetches == 0


def test_after_a_restart_from_redis(fp32_model: LoadedModel, reference: list[Reference], redis_url: str) -> None:
    expected = beginnings(reference)[:NUM_STORED]
    live_and_leave(fp32_model, expected, stored(redis_url))
    answers, _ = live_again(fp32_model, expected, stored(redis_url))

    assert hits(answers, "storage") > 0
    assert hits(answers, "storage") + hits(answers, "host") + hits(answers, "device") >= all_pages(expected)


def pages_in(folder: Path) -> list[Path]:
    pages = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > PAGE * 1024)
    assert pages
    return pages


def flip_a_byte(page: Path) -> None:
    content = bytearray(page.read_bytes())
    content[len(content) // 2] ^= 1
    page.write_bytes(content)


def truncate(page: Path) -> None:
    page.write_bytes(page.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
def test_with_damaged_pages(
    fp32_model: LoadedModel, reference: list[Reference], folder: Path, damage: Callable[[Path], None]
) -> None:
    expected = beginnings(reference)[:NUM_STORED]
    pages = pages_in(folder)
    for page in random.Random(0).sample(pages, len(pages) // 3):
        damage(page)
    answers, second = live_again(fp32_model, expected, stored(folder.as_uri()))

    assert 0 < hits(answers, "storage") < all_pages(expected)
    assert second.tiers.store is not None
    if damage is not Path.unlink:
        assert second.tiers.store.stats().corrupt > 0


def test_with_a_store_that_is_dead(fp32_model: LoadedModel, reference: list[Reference]) -> None:
    expected = beginnings(reference)[:4]
    with TieredBench(fp32_model, stored("redis://127.0.0.1:1/0"), max_running=4) as bench:
        answers = bench.answers(token_ids(expected), num_new=NUM_NEW)
        bench.flush()
        bench.cache.check()

        assert_exact(answers, expected)
        assert hits(answers, "storage") == 0
        assert bench.stats.failed_fetches > 0
        assert bench.stats.failed_saves > 0
