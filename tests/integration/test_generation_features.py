"""Several completions, constraints and scores of prompts over the whole stack: client, gateway, worker and model."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import jsonschema
import pytest

from tests.fakes.gateway_stack import Completion, Stack, gateway
from tests.fakes.tiny_llama import tiny_llama
from tests.fakes.tiny_tokenizer import tiny_tokenizer
from tests.fakes.worker_stack import config, idle, running_worker
from worker.app import WorkerApp
from worker.model.loading import LoadedModel

TEXT = "The quick brown fox jumps over the lazy dog while the farmer counts his sheep."
NUM_PROMPT = len(tiny_tokenizer().encode(TEXT).ids)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PATIENCE_S = 15.0


@dataclass
class Whole:
    stack: Stack
    worker: WorkerApp

    async def ask(self, **sampling: Any) -> Completion:
        return await self.stack.generate(text=TEXT, sampling={"max_new_tokens": 200, "seed": 3, **sampling})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
async def whole(redis_url: str, model: LoadedModel) -> AsyncIterator[Whole]:
    async with running_worker(config(4096, max_running=16, max_waiting=32), model) as (worker, addresses):
        async with gateway(redis_url, [addresses.grpc], tenants=["acme", "globex"]) as stack:
            await stack.ready()
            yield Whole(stack, worker)
            await idle(worker)


def texts(done: Completion) -> dict[int, str]:
    found: dict[int, str] = defaultdict(str)
    for message in done.messages:
        found[message.index] += message.text
    return dict(found)


async def test_several_documents_of_one_prompt_fulfil_the_schema(whole: Whole) -> None:
    done = await whole.ask(n=8, json_schema=json.dumps(SCHEMA))
    found = texts(done)
    assert sorted(found) == list(range(8))
    for text in found.values():
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(found.values())) > 4
    usage = done.usage
    assert (usage.prompt_tokens, usage.computed_prompt_tokens) == (NUM_PROMPT, NUM_PROMPT)
    assert usage.completion_tokens == sum(len(message.token_ids) for message in done.messages)
    assert len(whole.stack.observer.admissions) == 1


async def test_the_prompt_of_several_completions_is_a_hit_for_the_next_request_of_the_tenant_only(whole: Whole) -> None:
    await whole.ask(n=3, max_new_tokens=5)
    again = await whole.ask(n=3, max_new_tokens=5)
    assert again.usage.cached.device == NUM_PROMPT - 1
    other = await whole.stack.generate("globex", text=TEXT, sampling={"max_new_tokens": 5, "n": 3})
    assert other.usage.cached.device == 0


async def test_completion_0_is_what_a_request_for_one_gets(whole: Whole) -> None:
    several = await whole.ask(n=4, max_new_tokens=20)
    one = await whole.ask(max_new_tokens=20)
    tokens = [token for message in several.messages if message.index == 0 for token in message.token_ids]
    assert tokens == one.token_ids


async def test_expressions_and_choices_are_held_to(whole: Whole) -> None:
    by_regex = await whole.ask(regex="[0-9]{3}-[0-9]{4}", n=3)
    assert all(len(text) == 8 and text[3] == "-" for text in texts(by_regex).values())
    by_choice = await whole.ask(choice={"texts": ["yes", "no"]}, n=3, temperature=2.0)
    assert set(texts(by_choice).values()) <= {"yes", "no"}


async def test_a_stop_string_cuts_every_completion(whole: Whole) -> None:
    done = await whole.ask(n=4, regex=r'\{"name": "[a-z]{1,6}", "age": [0-9]{1,2}\}', stop=['", "a'])
    assert all(text.startswith('{"name": "') and '", ' not in text for text in texts(done).values())
    assert len(texts(done)) == 4


async def test_log_probabilities_of_the_prompt_arrive_one_for_each_token_behind_the_first(whole: Whole) -> None:
    for cached in (0, 0):
        done = await whole.ask(prompt_logprobs=2, logprobs=1, max_new_tokens=3)
        scores = [entry for message in done.messages for entry in message.prompt_logprobs]
        assert len(scores) == NUM_PROMPT - 1
        assert all(len(entry.top) == 2 and entry.logprob <= 0 for entry in scores)
        assert sum(len(message.logprobs) for message in done.messages) == 3
        assert done.usage.cached.device == cached


@pytest.mark.parametrize(
    ("constraint", "field", "told"),
    [
        ({"json_schema": '{"type":"string","enum":[]}'}, "json_schema", "Unsatisfiable"),
        ({"json_schema": "false"}, "json_schema", "no text fulfils it"),
        ({"json_schema": "{"}, "json_schema", "not valid JSON"),
        ({"json_schema": '{"items":' * 5000 + "true" + "}" * 5000}, "json_schema", "deep"),
        ({"json_schema": '{"description":"' + "x" * 100_000 + '"}'}, "json_schema", "65536"),
        ({"regex": "(a"}, "regex", "unclosed group"),
        ({"regex": r"[^\s\S]"}, "regex", "no text"),
        ({"regex": "(" * 30_000 + "a" + ")" * 30_000}, "regex", "compiled"),
        ({"choice": {}}, "choice.texts", "1 to 256"),
    ],
)
async def test_what_cannot_be_held_to_is_refused_in_time_by_its_field(
    whole: Whole, constraint: dict[str, Any], field: str, told: str
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        refusal = await whole.stack.refused(text=TEXT, sampling={"max_new_tokens": 5, "n": 2, **constraint})
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refusal.fields) == [f"sampling.{field}"]
    assert told in refusal.fields[f"sampling.{field}"]


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"regex": ".*a.{5000}"},
        {"json_schema": '{"type":"array","minItems":10000000,"items":{"type":"string","maxLength":1000000}}'},
    ],
)
async def test_what_would_explode_costs_a_bounded_time_and_nobody_else_anything(
    whole: Whole, constraint: dict[str, Any]
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        explosive = asyncio.create_task(whole.ask(max_new_tokens=60, n=2, **constraint))
        plain = await whole.ask(max_new_tokens=20)
        await asyncio.wait([explosive])
    assert plain.usage.completion_tokens > 0
    error = explosive.exception()
    assert error is None or (
        isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.INVALID_ARGUMENT
    )


async def test_more_completions_than_a_worker_ever_runs_are_refused_by_the_limit(whole: Whole) -> None:
    refusal = await whole.stack.refused(text=TEXT, sampling={"max_new_tokens": 5, "n": 64})
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "16 running and 32 waiting" in refusal.fields["sampling.n"]


async def test_a_client_that_leaves_frees_every_completion(whole: Whole) -> None:
    call = whole.stack.call(text=TEXT, sampling={"max_new_tokens": 1500, "n": 6, "ignore_eos": True})
    await call.read()
    call.cancel()
    await idle(whole.worker)


async def test_a_deadline_ends_every_completion(whole: Whole) -> None:
    late = await whole.stack.refused(
        timeout=0.5, text=TEXT, sampling={"max_new_tokens": 1900, "n": 12, "ignore_eos": True}
    )
    assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await idle(whole.worker)


async def test_many_requests_of_every_kind_at_once_all_come_to_their_end(whole: Whole) -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {"n": 3},
        {"json_schema": json.dumps(SCHEMA), "n": 2},
        {"prompt_logprobs": 0},
        {"choice": {"texts": ["yes", "no"]}, "n": 2},
        {"regex": "[a-z]{5}", "prompt_logprobs": 1, "logprobs": 1},
    )
    calls = [whole.ask(**{"max_new_tokens": 40, **kinds[number % len(kinds)], "seed": number}) for number in range(15)]
    for number, done in enumerate(await asyncio.gather(*calls)):
        n = kinds[number % len(kinds)].get("n", 1)
        assert len({message.index for message in done.messages if message.finish_reason}) == n
        assert done.usage.prompt_tokens == NUM_PROMPT
