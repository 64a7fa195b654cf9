"""A seeded answer is a function of its request: alone, in company, and with its prompt cached, in fp32."""

from typing import Any

import numpy as np
import pytest

from hicache.cache import PrefixCache
from hicache.keys import Namespace
from tests.driver import request, run
from tests.exactness import own_namespaces
from tests.reference import Reference
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.executors import InlineExecutor
from worker.engine.limits import ModelLimits
from worker.model.loading import LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_ALONE = 4
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 50, "repetition_penalty": 1.2},
    {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.5},
)


def engine(model: LoadedModel, max_running: int) -> Engine:
    info = model.info
    return Engine(
        PrefixCache(12_288),
        InlineExecutor(model.executor(model.pool(12_288))),
        model.text,
        ModelLimits(info.vocab_size, info.context_length, info.eos_token_ids),
        EngineConfig(max_running=max_running),
    )


def answers(running: Engine, references: list[Reference], namespaces: list[Namespace], first: int) -> list[list[int]]:
    requests = []
    for index, (each, namespace) in enumerate(zip(references, namespaces, strict=True)):
        params = SamplingParams(max_new_tokens=24, seed=index, **SAMPLING[index % len(SAMPLING)])
        requests.append(request(first + index, each.prompt_token_ids, namespace=namespace, params=params))
    return [answer.token_ids for answer in run(running, requests)]


def test_a_seeded_answer_does_not_depend_on_company_or_cache(
    fp32_model: LoadedModel, reference: list[Reference]
) -> None:
    prompts, namespaces = reference[:32], own_namespaces(32)
    company = engine(fp32_model, max_running=32)
    together = answers(company, prompts, namespaces, first=0)
    cached = answers(company, prompts, namespaces, first=100)
    alone = answers(engine(fp32_model, max_running=1), prompts[:NUM_ALONE], namespaces[:NUM_ALONE], first=0)

    assert alone == together[:NUM_ALONE]
    assert cached == together
    assert len({tuple(tokens) for tokens in together}) == 32
    assert np.mean([len(tokens) for tokens in together]) > 12
