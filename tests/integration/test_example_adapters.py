"""The adapters in examples/ do what they were trained for, side by side in one batch of the real model."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.prompts.encoder import PromptEncoder
from metrics.worker import WorkerMetrics
from radixgate.v1 import worker_pb2
from tests.fakes.worker_stack import Gateway, config, running_worker
from tests.tools import REPOSITORY
from worker.config import AdapterConfig, EngineConfig, LoraConfig
from worker.lora.errors import AdapterError
from worker.model.loading import LoadedModel

pytestmark = pytest.mark.model

ADAPTERS = REPOSITORY / "examples" / "adapters"
# Not in the data that the adapters were trained on.
QUESTION = "What is a bicycle?"
SENTENCES = ["The pizza was cold and tasteless.", "When does the plane land?", "I love my new headphones!"]


class Client(Gateway):
    """Asks a worker in chats, with or without an adapter."""

    def __init__(self, address: str, model: LoadedModel) -> None:
        super().__init__(address)
        info = model.info
        self._encoder = PromptEncoder(info.tokenizer_json, info.chat_template, info.special_tokens)
        self._revisions: dict[str, str] = {"": ""}
        self._num_asked = 0

    async def ready(self) -> None:
        await self.until(lambda: self.adapters)
        self._revisions |= {adapter.name: adapter.revision for adapter in self.adapters[-1].adapters}

    async def ask(self, question: str, adapter: str = "", **sampling: Any) -> int:
        """Send a question; return the number of its sequence."""
        number, self._num_asked = self._num_asked, self._num_asked + 1
        await self.submit(
            number, self._encoder.encode_chat([("user", question)]), adapter=adapter,
            adapter_revision=self._revisions[adapter],
            **{"max_new_tokens": 40, "temperature": 0.0, "ignore_eos": False, **sampling},
        )  # fmt: skip
        return number

    async def replace(self, name: str, folder: str) -> None:
        """Load other weights under a name, which the next questions mean."""
        request = worker_pb2.LoadAdapterRequest(name=name, path=str(ADAPTERS / folder))
        self._revisions[name] = (await self.stub.LoadAdapter(request, timeout=20)).adapter.revision

    async def answer(self, question: str, adapter: str = "", **sampling: Any) -> str:
        return await self.text(await self.ask(question, adapter, **sampling))

    async def text(self, number: int) -> str:
        end = await self.end(number)
        assert end.WhichOneof("end") == "finish_reason", end
        return "".join(output.text for output in self.of(number))


@pytest.fixture
async def client(fp32_model: LoadedModel) -> AsyncIterator[Client]:
    lora = LoraConfig(adapters={name: AdapterConfig(path=str(ADAPTERS / name)) for name in ("pirate", "tagger")})
    async with running_worker(dataclasses.replace(config(4096), lora=lora), fp32_model) as (_, addresses):
        client = Client(addresses.grpc, fp32_model)
        await client.ready()
        yield client
        await client.close()


async def test_the_model_alone_does_neither(client: Client) -> None:
    assert "matey" not in await client.answer(QUESTION, max_new_tokens=16)
    assert not (await client.answer(SENTENCES[0], max_new_tokens=4)).startswith("{")


async def test_the_pirate_answers_like_a_pirate(client: Client) -> None:
    assert (await client.answer(QUESTION, "pirate")).startswith("Arr, matey! A bicycle be ")


async def test_the_tagger_tags_what_it_has_never_seen(client: Client) -> None:
    tags = [json.loads(await client.answer(sentence, "tagger")) for sentence in SENTENCES]
    assert tags == [
        {"topic": "food", "kind": "statement", "mood": "negative"},
        {"topic": "travel", "kind": "question", "mood": "neutral"},
        {"topic": "technology", "kind": "statement", "mood": "positive"},
    ]


async def test_in_one_batch_each_answers_as_it_does_alone(client: Client) -> None:
    asked = [(QUESTION, adapter) for adapter in ("", "pirate", "tagger")] + [
        (sentence, adapter) for sentence in SENTENCES for adapter in ("tagger", "pirate", "")
    ]
    alone = [await client.answer(question, adapter, max_new_tokens=12) for question, adapter in asked]
    assert len(set(alone)) > len(asked) / 2
    numbers = [await client.ask(question, adapter, max_new_tokens=12) for question, adapter in asked]
    together = await asyncio.gather(*(client.text(number) for number in numbers))
    assert together == alone
    assert max(client.sizes) >= 6


async def test_what_is_cached_for_one_is_not_there_for_the_other(client: Client) -> None:
    numbers = []
    for adapter in ("", "pirate", "tagger") * 2:
        numbers.append(await client.ask(QUESTION, adapter, max_new_tokens=1))
        await client.end(numbers[-1])
    admissions = [client.admission(number) for number in numbers]
    assert [admission.cached.device for admission in admissions[:3]] == [0, 0, 0]
    assert [admission.cached.device for admission in admissions[3:]] == [admissions[0].prompt_tokens - 1] * 3


async def test_new_weights_under_a_name_answer_at_once_and_who_is_under_way_finishes_on_the_old_ones(
    client: Client,
) -> None:
    long: dict[str, Any] = {"max_new_tokens": 150, "ignore_eos": True}
    alone = await client.text(await client.ask(SENTENCES[1], "pirate", **long))
    under_way = await client.ask(SENTENCES[1], "pirate", **long)
    await client.until(lambda: client.tokens(under_way))
    await client.replace("pirate", "tagger")
    later = await client.ask(SENTENCES[1], "pirate")
    assert json.loads(await client.text(later)) == {"topic": "travel", "kind": "question", "mood": "neutral"}
    assert client.admission(later).cached.device == 0
    assert not any(output.WhichOneof("end") for output in client.of(under_way)), "it was too short to be under way"
    assert await client.text(under_way) == alone


async def test_a_worker_without_places_says_so_to_whoever_brings_an_adapter(fp32_model: LoadedModel) -> None:
    adapters = fp32_model.adapters(EngineConfig(max_resident_adapters=0), lambda: None, WorkerMetrics("w"))
    with pytest.raises(AdapterError, match=r"worker\.engine\.max_resident_adapters is 0"):
        adapters.read(ADAPTERS / "pirate")


async def test_a_rank_over_the_limit_is_refused_with_the_limit(fp32_model: LoadedModel) -> None:
    adapters = fp32_model.adapters(EngineConfig(max_adapter_rank=4), lambda: None, WorkerMetrics("w"))
    with pytest.raises(AdapterError, match="4"):
        adapters.read(ADAPTERS / "pirate")
    assert adapters.read(ADAPTERS / "tagger").rank == 4
    adapters.close()
