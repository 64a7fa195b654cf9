"""LHD: what it takes for a conversation, what it learns from one, and whom it keeps for it."""

import random

import numpy as np
import pytest

from hicache.cache import PrefixCache
from hicache.radix.node import Node
from hicache.radix.policy import LHD, LRU, EvictionPolicy
from hicache.radix.policy.returns import NUM_CLASSES, Conversations, Returns, Visit, bucket_of, densities_of
from tests.unit.hicache.support import key, serve


def node(token: int, now: float, parent: Node | None = None, siblings: int = 0) -> Node:
    """A node of one token below `parent`, which gets so many more children."""
    made = Node(bytearray(token.to_bytes(4, "little")), bytearray(4), parent, None, now)
    if parent is not None:
        for each in range(siblings + 1):
            parent.adopt(bytes([token, each]), made)
    return made


def test_a_leaf_that_is_used_again_is_the_next_turn_of_its_conversation() -> None:
    conversations = Conversations(100)
    leaf = node(1, 10.0)
    assert conversations.visit(leaf) == Visit(turn=0, idle_s=0.0, is_new=True)
    leaf.last_access_time = 25.0
    assert conversations.visit(leaf) == Visit(turn=1, idle_s=15.0, is_new=True)


def test_a_leaf_that_only_changes_its_queue_is_no_turn() -> None:
    conversations = Conversations(100)
    leaf = node(1, 10.0)
    conversations.visit(leaf)
    assert conversations.visit(leaf) == Visit(turn=0, idle_s=0.0, is_new=False)


def test_a_tail_beside_the_old_tail_is_the_next_turn() -> None:
    conversations = Conversations(100)
    head = node(1, 0.0)
    conversations.visit(head)
    new_tail = node(2, 30.0, parent=head, siblings=1)
    assert conversations.visit(new_tail) == Visit(turn=1, idle_s=30.0, is_new=True)


def test_children_of_a_system_prompt_are_conversations_of_their_own() -> None:
    conversations = Conversations(100)
    system_prompt = node(1, 0.0)
    conversations.visit(system_prompt)
    first = node(2, 5.0, parent=system_prompt, siblings=2)
    second = node(3, 6.0, parent=system_prompt)
    assert conversations.visit(first).turn == 0
    assert conversations.visit(second).turn == 0


def test_a_conversation_is_known_when_it_comes_back_after_its_eviction() -> None:
    conversations = Conversations(100)
    conversations.visit(node(7, 10.0))
    assert conversations.visit(node(7, 90.0)) == Visit(turn=1, idle_s=80.0, is_new=True)


def test_the_longest_idle_conversation_is_forgotten_first() -> None:
    conversations = Conversations(2)
    for token, now in ((1, 1.0), (2, 2.0), (1, 3.0), (3, 4.0)):
        conversations.visit(node(token, now))
    assert conversations.visit(node(1, 5.0)).turn == 2
    assert conversations.visit(node(2, 6.0)).turn == 0


@pytest.mark.parametrize("age_s", [0.0, 0.1, 0.125, 0.18, 0.19, 1.0, 1.49, 1.5, 100.0, 3600.0, 1e9])
def test_buckets_follow_one_another_two_to_an_octave(age_s: float) -> None:
    edges = [0.0, *(edge for octave in range(21) for edge in (0.125 * 2**octave, 0.1875 * 2**octave)), 0.125 * 2**21]
    assert bucket_of(age_s) == sum(edge <= age_s for edge in edges) - 1


def test_nothing_known_yet_is_lru() -> None:
    ranks = [Returns().rank(0, age_s) for age_s in (1000.0, 200.0, 199.0, 10.0, 0.0)]
    assert ranks == sorted(ranks)


def test_densities_are_hits_for_each_second_waited_at_the_best_horizon() -> None:
    starts, returns = np.zeros(NUM_CLASSES), np.zeros((NUM_CLASSES, 44))
    starts[0], returns[0, bucket_of(50.0)] = 1e6, 5e5
    density = densities_of(starts, returns)[0]
    # Half of them come back between 48 and 64 s. From 48 s on that is 5e5 hits for 1e6 waiting 16 s, less those gone.
    assert density[bucket_of(50.0)] == pytest.approx(5e5 / (16 * 7.5e5), rel=0.01)
    # From the start on, all of them wait 48 s first.
    assert density[0] == pytest.approx(5e5 / (16 * 7.5e5 + 48 * 1e6), rel=0.01)
    # Whoever is not back by then hardly ever will be.
    assert density[bucket_of(100.0)] < density[0] / 1000


def test_densities_have_one_peak_whatever_was_counted() -> None:
    choose = np.random.default_rng(0)
    returns = choose.integers(0, 50, size=(NUM_CLASSES, 44)).astype(float)
    for row in densities_of(returns.sum(axis=1) * choose.uniform(1, 3), returns):
        peak = int(row.argmax())
        assert (np.diff(row[: peak + 1]) >= 0).all()
        assert (np.diff(row[peak:]) <= 0).all()


def hit_rate(policy: EvictionPolicy, num_slots: int, requests: list[tuple[list[int], float]]) -> float:
    cache = PrefixCache(num_slots, policy=policy)
    hits = sum(serve(cache, key(tokens), now) for tokens, now in requests)
    cache.check()
    return hits / sum(len(tokens) for tokens, _ in requests)


def test_a_loop_longer_than_the_pool_is_hit_in_part() -> None:
    prompts = [[number] * 20 for number in range(100)]
    loops = [(prompts[now % 100], float(now)) for now in range(3_000)]
    assert hit_rate(LRU(), 1_000, loops) == 0.0
    assert hit_rate(LHD(), 1_000, loops) > 0.3


def test_conversations_with_several_turns_outlive_those_with_one() -> None:
    """Nine of ten end with their first turn; the others have ten turns, a minute apart."""
    choose = random.Random(0)
    requests = []
    for number in range(3_000):
        turns = 10 if choose.random() < 0.1 else 1
        tokens = [number]
        for turn in range(turns):
            tokens = tokens + [number] * 20
            requests.append((tokens, number + 60.0 * turn))
    requests.sort(key=lambda request: request[1])
    assert hit_rate(LHD(), 2_500, requests) > 1.2 * hit_rate(LRU(), 2_500, requests) > 0.0
