"""Gateways over real workers: what they know of caches is what caches hold, and what they expect is what comes."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.config import RoutingConfig
from gateway.dispatch.worker_view import WorkerView
from tests.fakes.gateway_stack import Stack, gateway, until
from tests.fakes.worker_stack import config, running_worker
from worker.app import WorkerApp

PAGE = 64  # of names


class Fleet:
    def __init__(self, gateways: list[Stack], workers: list[WorkerApp]) -> None:
        self.gateways = gateways
        self.workers = workers
        self.dice = random.Random(1)

    def prompt(self, num_tokens: int) -> list[int]:
        return [self.dice.randrange(256) for _ in range(num_tokens)]

    async def ask(self, token_ids: list[int], gateway: int = 0, tenant: str = "acme") -> tuple[str, int, int, int]:
        """Return the worker, what was expected, what was cached, and the error."""
        stack = self.gateways[gateway]
        sampling = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}
        await stack.generate(tenant, tokens={"token_ids": token_ids}, sampling=sampling)
        return stack.observer.hit_predictions[-1]

    async def settle(self) -> None:
        """Wait until each gateway knows exactly what each cache holds."""
        await until(lambda: all(self.knows(stack) for stack in self.gateways), 60.0)

    def knows(self, stack: Stack) -> bool:
        held = sorted(_held(app) for app in self.workers)
        known = sorted(_known(view) for view in views(stack))
        return held == known


def views(stack: Stack) -> list[WorkerView]:
    return [link._view for link in stack.app.serving.fleet.links()]


def _held(app: WorkerApp) -> tuple[int, int, int]:
    events = app._engine._cache.events
    assert events is not None
    digest = events.digest()
    return digest.seq, digest.device.num_pages, digest.device.total


def _known(view: WorkerView) -> tuple[int, int, int]:
    following = view._following
    assert following is not None
    digest = following.digest
    return digest.seq, digest.device.num_pages, digest.device.total


@asynccontextmanager
async def fleet(redis_url: str, num_workers: int, num_gateways: int, **changes: Any) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(running_worker(config(num_slots=2048))) for _ in range(num_workers)]
        addresses = [found.grpc for _, found in workers]
        gateways: list[Stack] = []
        for number in range(num_gateways):
            made = await stack.enter_async_context(
                gateway(redis_url, addresses, tenants=[] if number else ["acme", "globex"], **changes)
            )
            await until(lambda: made.observer.workers.total() == len(addresses))  # noqa: B023 - awaited at once
            made.keys.update(gateways[0].keys if number else {})
            gateways.append(made)
        yield Fleet(gateways, [app for app, _ in workers])


async def test_turns_of_a_conversation_go_where_the_last_one_was_and_are_found_as_expected(redis_url: str) -> None:
    async with fleet(redis_url, 2, 1) as running:
        texts = [running.prompt(200) for _ in range(4)]
        homes: dict[int, str] = {}
        for turn in range(3):
            for number in running.dice.sample(range(4), 4):
                worker, expected, _, error = await running.ask(texts[number])
                assert homes.setdefault(number, worker) == worker
                assert error == 0
                assert expected >= (len(texts[number]) - 40) // PAGE * PAGE - PAGE if turn else expected == 0
                texts[number] = [*texts[number], *running.prompt(40)]
            await running.settle()


async def test_what_one_tenant_has_cached_is_expected_of_no_other(redis_url: str) -> None:
    async with fleet(redis_url, 1, 1) as running:
        prompt = running.prompt(200)
        assert (await running.ask(prompt))[1:] == (0, 0, 0)
        assert (await running.ask(prompt))[1:] == (192, 199, 0)
        assert (await running.ask(prompt, tenant="globex"))[1:] == (0, 0, 0)


async def test_a_gateway_that_starts_later_knows_what_the_first_one_had_computed(redis_url: str) -> None:
    async with fleet(redis_url, 2, 1) as running:
        prompts = [running.prompt(200) for _ in range(6)]
        homes = [(await running.ask(prompt))[0] for prompt in prompts]
        addresses = [view._worker for view in views(running.gateways[0])]
        async with gateway(redis_url, addresses, tenants=[]) as late:
            late.keys.update(running.gateways[0].keys)
            await until(lambda: late.observer.workers.total() == 2)
            running.gateways.append(late)
            await running.settle()
            for prompt, home in zip(prompts, homes, strict=True):
                assert await running.ask(prompt, gateway=1) == (home, 192, 199, 0)


async def test_gateways_agree_with_caches_that_evict_all_the_time(redis_url: str) -> None:
    async with fleet(redis_url, 1, 2) as running:
        prompts = [running.prompt(300) for _ in range(12)]  # the cache has room for seven
        for number in range(30):
            *_, error = await running.ask(running.dice.choice(prompts), gateway=number % 2)
            assert error == 0
            await running.settle()
        assert running.workers[0]._engine._cache.stats().evicted_tokens > 0


async def test_the_policy_is_the_configured_one(redis_url: str) -> None:
    async with fleet(redis_url, 2, 1, routing=RoutingConfig(policy="round_robin")) as running:
        prompt = running.prompt(200)
        workers = [(await running.ask(prompt))[0] for _ in range(4)]
        assert workers[0] == workers[2] != workers[1] == workers[3]
