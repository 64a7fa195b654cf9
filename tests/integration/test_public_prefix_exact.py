"""Greedy output below a public prefix equals `transformers` generate token for token in fp32, for every tenant, from
whatever tier the prefix comes; and what tenants find is what is public and what is their own.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hicache.keys import Namespace, PrefixKey, Segment
from tests.driver import Answer, request
from tests.exactness import assert_exact, token_ids
from tests.reference import Reference
from tests.tiered import TieredBench
from worker.batch import SamplingParams
from worker.config import CacheConfig, StorageConfig
from worker.engine import Request
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_PROMPTS, NUM_NEW = 6, 4
PAGE = 8
PUBLIC = Namespace(b"public".ljust(16))
TENANTS = ("acme", "globex")


@pytest.fixture
def expected(reference: list[Reference]) -> list[Reference]:
    """The first tokens of some answers, whose prompts begin alike: with the template's own system prompt."""
    return [
        replace(each, token_ids=each.token_ids[:NUM_NEW], margins=each.margins[:NUM_NEW])
        for each in reference[:NUM_PROMPTS]
    ]


def common_tokens(expected: Sequence[Reference]) -> int:
    prompts = token_ids(expected)
    return next(index for index, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1)


def requests(expected: Sequence[Reference], tenant: str, barrier: int) -> list[Request]:
    params = SamplingParams(max_new_tokens=NUM_NEW, temperature=0.0, logprobs=0)
    made = []
    for tokens in token_ids(expected):
        public = Segment(PUBLIC, np.array(tokens[:barrier], dtype=np.int32))
        own = Segment(Namespace(tenant.encode().ljust(16)), np.array(tokens[barrier:], dtype=np.int32))
        made.append(replace(request(0, tokens, params=params), key=PrefixKey((public, own)), tenant=tenant))
    return made


def hits(answers: Sequence[Answer], tier: str) -> list[int]:
    return [getattr(answer.admission.hit, tier) for answer in answers if answer.admission is not None]


@pytest.mark.parametrize("page_size", [1, PAGE])
def test_all_tenants_at_once(fp32_model: LoadedModel, expected: list[Reference], page_size: int) -> None:
    barrier = common_tokens(expected)
    assert barrier >= 2 * PAGE
    with TieredBench(fp32_model, CacheConfig(num_slots=4_096, page_size=page_size), min_shared_tokens=1) as bench:
        asked = [each for tenant in TENANTS for each in requests(expected, tenant, barrier)]
        answers = bench.answers_to(asked, at_once=True)
        assert_exact(answers, [*expected, *expected])
        found = hits(answers, "device")
        assert min(found) == 0
        assert all(each >= barrier // page_size * page_size for each in sorted(found)[1:])
        (public,) = [each for each in bench.cache.tenants() if each.tenant == ""]
        assert (public.device, public.namespaces) == (barrier // page_size * page_size, 1)
        bench.cache.check()


@pytest.mark.parametrize("dropped", ["", "acme", "public"])
def test_from_storage_and_not_from_what_was_dropped(
    fp32_model: LoadedModel, expected: list[Reference], tmp_path: Path, dropped: str
) -> None:
    barrier = common_tokens(expected) // PAGE * PAGE
    storage = StorageConfig(url=tmp_path.as_uri(), page_size=PAGE, prefetch_timeout_s=30.0)
    config = CacheConfig(num_slots=2_048, host_slots=8_192, load_back_threshold=1, storage=storage)
    with TieredBench(fp32_model, config) as bench:
        for tenant in TENANTS:
            assert_exact(bench.answers_to(requests(expected[:2], tenant, barrier)), expected[:2])
        bench.flush()
        if dropped:
            bench.engine.drop_cache([Namespace(dropped.encode().ljust(16))])
        bench.settle()
        bench.cache.check()
    own = (len(expected[0].prompt_token_ids) - 1) // PAGE * PAGE - barrier
    for tenant in TENANTS:
        with TieredBench(fp32_model, config) as bench:
            answers = bench.answers_to(requests(expected[:1], tenant, barrier))
            assert_exact(answers, expected[:1])
            found = 0 if dropped == "public" else barrier + (0 if dropped == tenant else own)
            assert hits(answers, "storage") == [found]
            bench.cache.check()
