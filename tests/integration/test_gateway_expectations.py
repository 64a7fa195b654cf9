"""What a gateway expects workers to have cached, beside what they report: by worker, once for each request."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import Stack, gateway, until

PROMPT = [10 + i % 40 for i in range(200)]
BLOCKS = 192  # tokens of whole blocks of 32


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=["acme", "globex"]) as running:
        yield running


async def ask(stack: Stack, tenant: str = "acme", **sampling: int) -> tuple[int, int, int]:
    """Return what was expected, what was cached, and the error."""
    await stack.generate(tenant, tokens={"token_ids": PROMPT}, sampling={"max_new_tokens": 1, **sampling})
    return stack.observer.hit_predictions[-1][1:]


async def test_a_prompt_that_was_sent_before_is_expected_and_found(stack: Stack) -> None:
    assert await ask(stack) == (0, 0, 0)
    assert await ask(stack) == (BLOCKS, 199, 0)
    assert await ask(stack, "globex") == (0, 0, 0)
    assert [worker for worker, *_ in stack.observer.hit_predictions] == [stack.app.serving.fleet.links()[0].address] * 3


async def test_a_cache_that_lost_what_it_was_sent_shows(stack: Stack, worker: FakeWorker) -> None:
    await ask(stack)
    worker.lose_cache()
    assert await ask(stack) == (BLOCKS, 0, BLOCKS)


async def test_what_another_gateway_had_computed_shows(redis_url: str, stack: Stack, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], tenants=[]) as another:
        another.keys.update(stack.keys)
        await ask(another)
    assert await ask(stack) == (0, 199, 31 - 199)


async def test_nothing_is_expected_of_a_worker_that_came_back(stack: Stack, worker: FakeWorker) -> None:
    await ask(stack)
    address = worker.address
    await worker.kill()
    await until(lambda: not stack.app.serving.fleet.ready)
    worker.lose_cache()
    await worker.start(address)
    await until(lambda: stack.app.serving.fleet.ready)
    assert await ask(stack) == (0, 0, 0)


async def test_each_completion_of_a_request_is_expected_when_its_chat_goes_on(stack: Stack) -> None:
    await ask(stack, n=2, max_new_tokens=65)
    for index in range(2):
        turn = [*PROMPT, *completion(PROMPT, 65, index)]
        await stack.generate("acme", tokens={"token_ids": turn}, sampling={"max_new_tokens": 1})
        assert stack.observer.hit_predictions[-1][1] == 256


async def test_where_a_prompt_is_scored_nothing_is_expected(stack: Stack) -> None:
    await ask(stack)
    told = len(stack.observer.hit_predictions)
    await ask(stack, prompt_logprobs=0)
    assert len(stack.observer.hit_predictions) == told
