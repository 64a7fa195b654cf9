"""What belongs to one namespace is found in no other."""

from itertools import permutations

import pytest

from hicache.cache import PrefixCache
from hicache.keys import ExtraKey, Namespace, PrefixKey, Segment
from tests.unit.hicache.support import key, serve, settle

SECRET = b"a secret that only tests know"
TOKENS = list(range(64))

AWKWARD = ["", "a", "b", "bc", "ab", "abc", "a:b", "a/b", "a|b", "a\x00b", "\x00", " a", "A", "ä", "a\u0308", "東京"]
LONG = ["x" * 10_000, "x" * 9_999 + "y", "y" + "x" * 9_999]

EXTRA_KEYS = [
    ExtraKey("acme"),
    *(ExtraKey(tenant, adapter) for tenant in ("a", "ab", "abc") for adapter in ("", "c", "bc")),
    *(ExtraKey(name) for name in (*AWKWARD, *LONG) if name not in ("a", "ab", "abc")),
    *(ExtraKey("acme", adapter=name) for name in (*AWKWARD, *LONG) if name),
    *(ExtraKey("acme", adapter="lora", adapter_revision=name) for name in (*AWKWARD, *LONG)),
    *(ExtraKey("acme", scope=name) for name in (*AWKWARD, *LONG) if name),
    *(ExtraKey("acme", cache_version=version) for version in (1, 2, 256, 2**32, 2**64 - 1)),
]
NAMESPACES = [
    *(Namespace(extra_key.digest(SECRET)) for extra_key in EXTRA_KEYS),
    *(Namespace(ExtraKey("acme").digest(SECRET), revision) for revision in AWKWARD if revision),
]


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_same_tokens_in_any_two_namespaces_never_meet(page_size: int) -> None:
    cache = PrefixCache(64 * (len(NAMESPACES) + 1), page_size=page_size)
    for namespace in NAMESPACES:
        # Each one comes when all the ones before it are cached, and hits none of them.
        assert cache.peek(PrefixKey.of(namespace, TOKENS)).total == 0
        assert serve(cache, PrefixKey.of(namespace, TOKENS), 1.0) == 0
    cache.check()
    assert cache.num_cached_slots == 64 * len(NAMESPACES)
    for namespace in NAMESPACES:
        assert cache.peek(PrefixKey.of(namespace, TOKENS)).total == 64
    for namespace in NAMESPACES:
        cache.drop(namespace)
        assert cache.peek(PrefixKey.of(namespace, TOKENS)).total == 0
    settle(cache)
    assert cache.num_free_slots == cache.num_slots


def test_the_boundary_between_tenant_and_adapter_counts() -> None:
    cache = PrefixCache(128)
    serve(cache, PrefixKey.of(Namespace(ExtraKey("a", "bc").digest(SECRET)), TOKENS), 1.0)
    assert cache.peek(PrefixKey.of(Namespace(ExtraKey("ab", "c").digest(SECRET)), TOKENS)).total == 0


def test_a_base_model_whose_scope_is_an_adapters_name_does_not_read_the_adapters_kv() -> None:
    cache = PrefixCache(128)
    serve(cache, PrefixKey.of(Namespace(ExtraKey("acme", adapter="lora").digest(SECRET), "r1"), TOKENS), 1.0)
    for extra_key in (ExtraKey("acme", scope="lora"), ExtraKey("acme", adapter_revision="lora"), ExtraKey("lora")):
        assert cache.peek(PrefixKey.of(Namespace(extra_key.digest(SECRET)), TOKENS)).total == 0


def test_a_wrong_tag_still_cannot_mix_weights() -> None:
    cache = PrefixCache(128)
    tag = ExtraKey("acme", adapter="lora", adapter_revision="r1").digest(SECRET)
    serve(cache, PrefixKey.of(Namespace(tag, "r1"), TOKENS), 1.0)
    assert cache.peek(PrefixKey.of(Namespace(tag, "r2"), TOKENS)).total == 0


def test_a_public_segment_is_no_way_around_a_namespace() -> None:
    public, one, other = (Namespace(bytes([index]) * 16) for index in range(3))
    cache = PrefixCache(512, page_size=4)

    def below_public(namespace: Namespace, num_public: int) -> PrefixKey:
        return PrefixKey((Segment(public, TOKENS[:num_public]), Segment(namespace, TOKENS[num_public:])))

    serve(cache, below_public(one, 16), 1.0)
    serve(cache, PrefixKey.of(public, TOKENS), 2.0)
    cache.check()
    for left, right in permutations((one, other)):
        expected = 64 if left == one else 16
        assert cache.peek(below_public(left, 16)).total == expected
        assert cache.peek(PrefixKey.of(right, TOKENS)).total == 0
    # The barrier itself counts: the same tokens with the barrier elsewhere are another prefix.
    assert cache.peek(below_public(one, 32)).total == 32
    # What a tenant has on its own is not what it has below a public prefix.
    serve(cache, key(TOKENS, "alone"), 3.0)
    assert cache.peek(below_public(one, 0)).total == 0


def test_a_barrier_inside_a_node_leads_nowhere_else() -> None:
    public, tenant = Namespace(bytes(16)), Namespace(bytes([1]) * 16)
    cache = PrefixCache(256)
    serve(cache, PrefixKey.of(public, TOKENS), 1.0)
    serve(cache, PrefixKey.of(tenant, TOKENS[8:]), 2.0)
    both = PrefixKey((Segment(public, TOKENS[:8]), Segment(tenant, TOKENS[8:])))
    assert cache.peek(both).total == 8
    with cache.acquire(both, now=3.0) as lease:
        assert lease.hit.total == 8
