"""Two tenants, one real model, isolated caches: the whole product over real sockets."""

import pytest

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Client, Stack
from tests.reference import greedy_reference, prompts
from worker.config import ModelConfig
from worker.model.loading import load_model
from worker.model.progress import SilentProgress

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def test_each_tenant_reuses_its_own_conversation_and_never_the_others(alice: Client, bob: Client) -> None:
    question = "Name three rivers of Europe and say where each of them ends."
    # Both name the same scope, which nobody else uses: nothing but the tenant tells the two apart.
    first = alice.ask(question, scope="rivers")
    second = alice.ask(question, first.text, "And which of them is the longest?", scope="rivers")
    stranger = bob.ask(question, scope="rivers")
    again = bob.ask(question, scope="rivers")

    for answer in (first, second, stranger, again):
        assert answer.usage.completion_tokens == len(answer.token_ids)
    assert first.cached == 0
    assert second.cached >= first.usage.prompt_tokens - 1
    assert stranger.cached == 0
    assert again.cached == again.usage.prompt_tokens - 1
    assert first.text == stranger.text == again.text
    assert first.token_ids == stranger.token_ids == again.token_ids


def test_a_scope_narrows_sharing_inside_a_tenant(alice: Client) -> None:
    question = "What is a lighthouse for?"
    alice.ask(question, scope="one")

    assert alice.ask(question, scope="one").cached > 0
    assert alice.ask(question, scope="two").cached == 0
    assert alice.ask(question).cached < alice.ask(question, scope="one").cached


def test_answers_are_the_models_true_answers_cold_and_warm(alice: Client) -> None:
    model = load_model(ModelConfig(dtype="fp32", threads=1), SilentProgress())
    for reference in greedy_reference(model, prompts(4), max_new_tokens=32):
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenPrompt(token_ids=reference.prompt_token_ids),
            sampling=inference_pb2.SamplingParams(max_new_tokens=32, temperature=0),
        )
        cold, warm = alice.generate(request), alice.generate(request)
        assert cold.token_ids == warm.token_ids == list(reference.token_ids)
        assert warm.cached == len(reference.prompt_token_ids) - 1


def test_the_workers_counters_grow_by_the_sums_over_the_responses(stack: Stack, alice: Client, bob: Client) -> None:
    names = ("prompt", "cached", "computed_prompt", "completion")

    def totals(tenant: str) -> dict[str, float]:
        return {name: stack.total(f"radixgate_{name}_tokens_total", tenant=tenant) for name in names}

    for tenant, client in (("demo-a", alice), ("demo-b", bob)):
        before = totals(tenant)
        answers = [client.ask("Count to five.", max_new_tokens=4) for _ in range(3)]
        answers.append(client.ask("Count to five hundred.", max_new_tokens=4))
        after = totals(tenant)
        assert {name: after[name] - before[name] for name in names} == {
            "prompt": sum(answer.usage.prompt_tokens for answer in answers),
            "cached": sum(answer.cached for answer in answers),
            "computed_prompt": sum(answer.usage.computed_prompt_tokens for answer in answers),
            "completion": sum(len(answer.token_ids) for answer in answers),
        }
        assert stack.total("radixgate_cache_hit_rate", tenant=tenant) > 0


def test_sampling_with_a_seed_repeats_and_without_one_varies(alice: Client) -> None:
    def sample(**sampling: object) -> list[int]:
        request = inference_pb2.GenerateRequest(
            text="Once upon a time",
            sampling=inference_pb2.SamplingParams(max_new_tokens=12, temperature=1.0, **sampling),  # type: ignore[arg-type]
        )
        return alice.generate(request).token_ids

    assert sample(seed=7) == sample(seed=7)
    assert len({tuple(sample()) for _ in range(4)}) > 1


def test_a_stop_string_ends_the_text_before_it(alice: Client) -> None:
    request = inference_pb2.GenerateRequest(
        text="1 2 3 4 5 6 7 8",
        sampling=inference_pb2.SamplingParams(max_new_tokens=64, temperature=0, stop=["12"]),
    )
    answer = alice.generate(request)

    assert answer.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert "12" not in answer.text
    assert answer.text.rstrip().endswith("11")


def test_log_probabilities_come_with_each_token(alice: Client) -> None:
    request = inference_pb2.GenerateRequest(
        text="The capital of France is",
        sampling=inference_pb2.SamplingParams(max_new_tokens=4, temperature=0, logprobs=3),
    )
    answer = alice.generate(request)

    assert len(answer.logprobs) == len(answer.token_ids) == 4
    for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert len(entry.top) == 3
        assert entry.top[0].token_id == token_id  # greedy takes the likeliest
        assert entry.top[0].logprob == pytest.approx(entry.logprob)
        assert entry.logprob <= 0


def test_counting_tokens_agrees_with_what_generation_counts(alice: Client) -> None:
    chat = inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="user", content="How are you, Zoë?")])
    counted = alice.stub.CountTokens(inference_pb2.CountTokensRequest(chat=chat), metadata=alice.metadata)
    answer = alice.ask("How are you, Zoë?", max_new_tokens=1)

    assert counted.num_tokens == len(counted.token_ids) == answer.usage.prompt_tokens


def test_the_model_is_listed_with_its_context(alice: Client) -> None:
    (model,) = alice.stub.ListModels(inference_pb2.ListModelsRequest(), metadata=alice.metadata).models

    assert model.name == "smollm2-135m-instruct"
    assert model.context_length == 8192
