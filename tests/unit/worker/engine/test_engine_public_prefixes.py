"""A public prefix and what tenants continue below it: computed once, found by everybody, and nothing beyond it is."""

from dataclasses import replace

import pytest

from hicache.keys import Namespace, PrefixKey, Segment
from hicache.storage.memory import MemoryStore
from tests.unit.worker.engine.harness import Rig, answer, make_request, prompt
from tests.unit.worker.engine.tiered_rig import NAME_TOKENS, TieredRig
from worker.config import EngineConfig
from worker.engine import Request
from worker.engine.fake import continuation

PUBLIC = Namespace(b"public".ljust(16))
COMMON_TOKENS = prompt(1_000, seed=1)


def own(tenant: str) -> Namespace:
    return Namespace(tenant.encode().ljust(16))


def below(number: int, tenant: str, tokens: list[int], public: list[int] = COMMON_TOKENS, **changes: object) -> Request:
    """A request of `tenant` that continues a public prefix."""
    key = PrefixKey((Segment(PUBLIC, public), Segment(own(tenant), tokens)))
    return replace(make_request(number, tenant=tenant), key=key, **changes)  # type: ignore[arg-type]


def num_computed(rig: Rig) -> int:
    return sum(batch.num_tokens for batch in rig.executor.batches)


@pytest.mark.parametrize(("page_size", "expected"), [(1, 1_000), (16, 992)])
@pytest.mark.parametrize("order", ["fair", "fcfs", "lpm", "dfs_weight", "priority"])
def test_of_64_tenants_at_the_same_moment_one_computes_it_and_63_find_it(
    page_size: int, expected: int, order: str
) -> None:
    config = EngineConfig(max_running=64, order=order)  # type: ignore[arg-type]
    rig = Rig(4_800, page_size, config=config)
    rig.submit(*[below(number, f"t{number}", prompt(9, seed=number)) for number in range(64)])
    rig.run()
    hits = sorted(rig.admission(number).hit.device for number in range(64))
    assert hits == [0] + [expected] * 63
    assert num_computed(rig) == sum(rig.admission(number).computed_tokens for number in range(64)) + 64 * 3
    for number in range(64):
        assert rig.tokens(number) == continuation([*COMMON_TOKENS, *prompt(9, seed=number)], 4, 1_000)
    rig.assert_nothing_is_held()


def test_the_same_continuation_of_two_tenants_is_computed_by_each() -> None:
    rig = Rig()
    for number, tenant in enumerate(["a", "b", "a"]):
        rig.submit(below(number, tenant, prompt(50)))
        rig.run()
    assert [rig.admission(number).hit.device for number in range(3)] == [0, 1_000, 1_049]


def test_what_follows_a_public_prefix_is_not_found_without_it_nor_the_other_way_round() -> None:
    rig = Rig()
    rig.submit(below(0, "a", prompt(50)))
    rig.run()
    rig.submit(make_request(1, [*COMMON_TOKENS, *prompt(50)], namespace=own("a"), tenant="a"))
    rig.submit(make_request(2, prompt(50), namespace=own("a"), tenant="a"))
    rig.run()
    rig.submit(below(3, "a", prompt(50), public=COMMON_TOKENS[:500]))
    rig.run()
    assert rig.admission(1).hit.device == rig.admission(2).hit.device == 0
    assert rig.admission(3).hit.device == 500


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17])
def test_a_prompt_whose_own_part_is_nothing_or_tiny(page_size: int, length: int) -> None:
    """What is put out then is the tenant's own all the same."""
    rig = Rig(3_200, page_size)
    tokens = prompt(length, seed=5)
    for number, tenant in enumerate(["a", "b"]):
        rig.submit(below(number, tenant, tokens, params=replace(make_request(0).params, max_new_tokens=30)))
        rig.run()
        assert rig.tokens(number) == answer([*COMMON_TOKENS, *tokens], 30)
    # b takes up its own answer, and then a's, as if it had guessed it.
    turn = [*tokens, *rig.tokens(1), 1, 2]
    rig.submit(below(2, "b", turn))
    rig.submit(below(3, "c", turn))
    rig.run()
    public = min(1_000, 999 + length) // page_size * page_size
    assert rig.admission(1).hit.device == public
    assert rig.admission(2).hit.device == (1_000 + length + 29) // page_size * page_size
    assert rig.admission(3).hit.device == 1_000 // page_size * page_size
    spaces = {each.tenant: each.namespaces for each in rig.engine.describe_cache().tenants}
    assert spaces == {"": 1, "a": 1, "b": 1, "c": 1}


def test_a_leader_whose_own_namespace_is_dropped_lets_the_others_compute_it() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=100))
    rig.submit(*[below(number, f"t{number}", prompt(9, seed=number)) for number in range(5)])
    rig.step()
    rig.engine.drop_cache([own("t0")])
    rig.run()
    hits = sorted(rig.admission(number).hit.device for number in range(5))
    assert hits[-3:] == [1_000] * 3
    assert rig.admission(0).hit.total == 0
    rig.assert_nothing_is_held()


def test_several_completions_and_scores_of_prompts_share_as_far_as_the_barrier() -> None:
    rig = Rig()
    several = replace(make_request(0).params, n=3)
    scored = replace(make_request(0).params, prompt_logprobs=0)
    rig.submit(below(0, "a", prompt(9), params=several))
    rig.submit(below(1, "b", prompt(9), params=scored))
    rig.submit(below(2, "c", prompt(9), params=several))
    rig.run()
    assert rig.admission(1).hit.total == 0  # whoever asks for scores computes all
    assert len(rig.scores(1)) == 1_008
    assert [rig.admission(number).hit.device for number in (0, 2)] == [0, 1_000]
    for number in (0, 1, 2):
        assert rig.tokens(number) == answer([*COMMON_TOKENS, *prompt(9)], 4)


def test_who_is_paused_comes_back_to_its_own_part() -> None:
    rig = Rig(1_130, config=EngineConfig(max_running=8, headroom_tokens=1))
    params = replace(make_request(0).params, max_new_tokens=60)
    rig.submit(*[below(number, f"t{number}", prompt(9, seed=number), params=params) for number in range(3)])
    rig.run()
    assert rig.observer.num_pauses > 0
    for number in range(3):
        assert rig.tokens(number) == answer([*COMMON_TOKENS, *prompt(9, seed=number)], 60)
    rig.assert_nothing_is_held()


def test_a_namespace_that_several_tenants_use_belongs_to_nobody() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(20), tenant="a"))
    rig.run()
    assert [each.tenant for each in rig.engine.describe_cache().tenants] == ["a"]
    rig.submit(make_request(1, prompt(20), tenant="b"))
    rig.run()
    assert [(each.tenant, each.namespaces) for each in rig.engine.describe_cache().tenants] == [("", 1)]


def test_a_public_prefix_counts_for_nobodys_share() -> None:
    rig = Rig(2_000)
    rig.submit(below(0, "a", prompt(50), cache_floor_tokens=500))
    rig.step()  # only a part of the public prefix is there yet
    contents = {each.tenant: each.device for each in rig.engine.describe_cache().tenants}
    assert contents.keys() == {""}
    assert 0 < contents[""] < 1_000
    rig.run()
    contents = {each.tenant: each.device for each in rig.engine.describe_cache().tenants}
    assert contents == {"": 1_000, "a": 53}
    assert rig.cache.is_within_floor("a", 447)
    assert not rig.cache.is_within_floor("a", 448)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_public_prefix_comes_back_from_host_and_storage_for_everybody(page_size: int) -> None:
    public = prompt(NAME_TOKENS * page_size * 2, seed=1)
    store = MemoryStore(1 << 20)
    rig = TieredRig(400, 1_600, page_size, store=store)
    rig.submit(below(0, "a", prompt(200), public=public))
    rig.serve_all()
    rig.to_host()
    rig.submit(below(1, "b", prompt(200), public=public))
    rig.serve_all()
    assert (rig.admission(1).hit.device, rig.admission(1).hit.host) == (0, len(public))
    rig.save()

    for tenant, found in [("c", len(public)), ("b", len(public) + 200 - NAME_TOKENS * page_size)]:
        elsewhere = TieredRig(400, 1_600, page_size, store=store)
        elsewhere.submit(below(0, tenant, prompt(200), public=public))
        elsewhere.serve_all()
        assert found <= elsewhere.admission(0).hit.storage < found + NAME_TOKENS * page_size
        assert rig.tokens(1) == elsewhere.tokens(0) == answer([*public, *prompt(200)], 4)
        elsewhere.settle()
        elsewhere.assert_nothing_is_left()
        assert {each.tenant for each in elsewhere.engine.describe_cache().tenants} == {"", tenant}
