"""What leaves the device comes back: from the host, from a store after a restart, from what another worker computed.

The model is a tiny one with random weights: what is tested is where KV comes from, and that the answers stay the same.
"""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from radixgate.v1 import inference_pb2
from tests.e2e.stack import Answer, Client, Stack, running_stack, tokens_request
from tests.fakes.tiny_tokenizer import tiny_tokenizer
from tests.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEVICE_SLOTS, HOST_SLOTS = 512, 4096
PAGE = 16
NUM_PROMPTS, NUM_NEW = 12, 8
LENGTHS = (90, 140)
TIERS = ("device", "host", "storage")


@pytest.fixture(scope="module")
def prompts() -> list[inference_pb2.GenerateRequest]:
    """More tokens than the device holds."""
    chance = random.Random(0)
    lengths = [chance.randint(*LENGTHS) for _ in range(NUM_PROMPTS)]
    assert sum(lengths) > 2 * DEVICE_SLOTS
    vocab_size = tiny_tokenizer().get_vocab_size()
    return [tokens_request([chance.randrange(3, vocab_size) for _ in range(n)], NUM_NEW) for n in lengths]


def settings(model: Path, redis_url: str, store: str, *more: str) -> list[str]:
    """Whoever is served by the same Redis has the same tenants, which names their pages in storage."""
    values = [
        f"redis.url={redis_url}",
        f"worker.model.model={model}",
        "worker.model.dtype=fp32",
        "worker.model.threads=1",
        f"worker.cache.num_slots={DEVICE_SLOTS}",
        f"worker.cache.host_slots={HOST_SLOTS}",
        "worker.cache.low_watermark=0.5",
        "worker.cache.high_watermark=0.7",
        f"worker.cache.storage.url={store}",
        f"worker.cache.storage.page_size={PAGE}",
        "worker.cache.storage.prefetch_timeout_s=30",
        "worker.engine.check=true",
        *more,
    ]
    return [argument for value in values for argument in ("--set", value)]


def ask_all(stack: Stack, tenant: str, prompts: Sequence[inference_pb2.GenerateRequest]) -> list[Answer]:
    client = Client(stack.grpc, stack.keys[tenant])
    answers = [client.generate(prompt) for prompt in prompts]
    client.close()
    for answer, prompt in zip(answers, prompts, strict=True):
        usage = answer.usage
        assert usage.prompt_tokens == len(prompt.tokens.token_ids)
        assert answer.cached + usage.computed_prompt_tokens == usage.prompt_tokens
    return answers


def cached(answers: Sequence[Answer]) -> Counter[str]:
    """Tokens that came from each tier."""
    found: Counter[str] = Counter()
    for answer in answers:
        found.update({tier: getattr(answer.usage.cached, tier) for tier in TIERS})
    return found


def token_ids(answers: Sequence[Answer]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def all_pages(prompts: Sequence[inference_pb2.GenerateRequest]) -> int:
    """Tokens that storage can bring: whole pages, and never a prompt's last token."""
    return sum((len(prompt.tokens.token_ids) - 1) // PAGE * PAGE for prompt in prompts)


def assert_shown(stack: Stack, answers: Sequence[Answer]) -> None:
    """Prometheus says what the usage of all answers says."""
    found = cached(answers)
    for tier in TIERS:
        assert stack.total("radixgate_cached_tokens_total", tier=tier) == found[tier]
    computed = sum(answer.usage.computed_prompt_tokens for answer in answers)
    prompt_tokens = sum(answer.usage.prompt_tokens for answer in answers)
    assert stack.total("radixgate_computed_prompt_tokens_total") == computed
    assert stack.total("radixgate_prompt_tokens_total") == prompt_tokens == found.total() + computed


def assert_nothing_is_held(stack: Stack) -> None:
    def slots(tier: str, *states: str) -> float:
        return sum(stack.total("radixgate_slots", tier=tier, state=state) for state in states)

    def at_rest() -> bool:
        return (
            slots("device", "free", "evictable") == DEVICE_SLOTS
            and slots("host", "free", "evictable") == HOST_SLOTS
            and slots("device", "in_use") == slots("host", "in_use") == 0
            and stack.total("radixgate_prefetch_reserved_bytes") == 0
        )

    wait_until(at_rest, timeout_s=15, what="every slot of device and host free or evictable")


def test_a_worker_that_is_started_again_goes_on_from_what_it_left_in_files(
    tmp_path: Path, tiny_model_folder: Path, prompts: list[inference_pb2.GenerateRequest], redis_url: str
) -> None:
    arguments = settings(tiny_model_folder, redis_url, (tmp_path / "pages").as_uri())
    lives = [tmp_path / "first", tmp_path / "second"]
    for folder in lives:
        folder.mkdir()

    with running_stack(lives[0], arguments) as stack:
        cold = ask_all(stack, "demo-a", prompts)
        warm = ask_all(stack, "demo-a", prompts)
        assert_shown(stack, [*cold, *warm])
        assert stack.total("radixgate_mirrored_tokens_total") > 0
        assert stack.total("radixgate_loaded_back_tokens_total") >= cached(warm)["host"]
        assert stack.total("radixgate_mirrored_bytes_total") > 0
        assert stack.total("radixgate_host_pool_bytes") > 0
        assert_nothing_is_held(stack)
    assert stack.process.returncode == 0
    with running_stack(lives[1], arguments) as stack:
        after = ask_all(stack, "demo-a", prompts)
        stranger = ask_all(stack, "demo-b", prompts[:3])
        assert_shown(stack, [*after, *stranger])
        assert stack.total("radixgate_prefetched_tokens_total") >= cached(after)["storage"]
        assert stack.total("radixgate_storage_found_pages_total") > 0
        assert_nothing_is_held(stack)

    assert cached(cold).total() == 0
    assert cached(warm)["host"] > 0
    assert cached(after)["storage"] > 0
    assert cached(after).total() >= all_pages(prompts)
    assert cached(stranger).total() == 0
    assert len(set(map(tuple, token_ids(cold)))) > NUM_PROMPTS / 2
    assert token_ids(warm) == token_ids(after) == token_ids(cold)
    assert token_ids(stranger) == token_ids(cold)[:3]


def test_two_workers_that_share_a_redis_load_what_the_other_has_computed(
    tmp_path: Path, tiny_model_folder: Path, prompts: list[inference_pb2.GenerateRequest], redis_url: str
) -> None:
    arguments = settings(tiny_model_folder, redis_url, redis_url, "worker.cache.write_policy=write_through")
    with ExitStack() as stacks:
        running = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            running.append(stacks.enter_context(running_stack(tmp_path / name, arguments)))
        one, other = running
        computed = ask_all(one, "demo-a", prompts)
        num_pages = all_pages(prompts) / PAGE
        wait_until(lambda: one.total("radixgate_saved_pages_total") >= num_pages, what="pages in storage")
        loaded = ask_all(other, "demo-a", prompts)
        stranger = ask_all(other, "demo-b", prompts[:3])
        assert_shown(other, [*loaded, *stranger])
        for stack in running:
            assert_nothing_is_held(stack)

    assert cached(loaded)["storage"] >= all_pages(prompts)
    assert cached(stranger).total() == 0
    assert token_ids(loaded) == token_ids(computed)
    assert token_ids(stranger) == token_ids(computed)[:3]
