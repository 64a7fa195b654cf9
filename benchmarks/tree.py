"""What the radix cache's own operations cost: no model, no tensors, one thread.

    python -m benchmarks.tree [--repeat N] [--json PATH] [--plot PATH]

Rows in microseconds are medians of many measurements, at page size 1 and under LRU:

    match_1k_1node_us            acquire a lease on 1,024 cached tokens that lie in one node: walk, lock, collect slots
    match_1k_of_2k_us            the same in one of 2,000 such nodes, side by side; each time another one
    match_8k_32node_us           the same, 8,192 tokens on a path of 32 nodes (each branches)
    match_32k_32node_us          the same, 32,768 tokens on a path of 32 nodes
    insert_8k_after_8k_us        commit 8,192 new tokens behind 8,192 that the lease holds in another node
    split_32k_us                 acquire 32,768 tokens of which the first half is cached, inside a node of twice that
                                 length: find where they part, split there in place, lock, collect slots
    lock_unlock_depth50_us       lock and unlock a node 50 nodes deep
    lock_unlock_depth50_held_us  the same while it is held already
    evict_one_of_10k_us          reserve 32 slots of a full pool with 10,000 leaves of 32 tokens: evict the coldest
                                 leaf, take its slots back, hand them out
    evict_one_of_100k_us         the same with 100,000 leaves
    evict_100k_to_1k             what that costs, divided by what it costs with 1,000 leaves
    demote_one_of_16k_us         the same with 16,000 leaves below one parent that all have a copy on the host: the
                                 coldest leaves the device and stays on the host
    evict_one_of_16k_on_host_us  free 32 host slots with 16,000 such leaves that are on the host alone
    drop_100k_us                 drop a namespace with 100,000 leaves: out of reach at once
    drop_100k_longest_tick_us    the longest of the ticks that free them, in CPU time
    memory_over_100k_splits      resident memory after 100,000 matches that end inside a node of 1,024 tokens, each of
                                 which splits it until the lease ends, divided by what it was before
    leaf_bytes                   memory of such a leaf beyond its payload (4 bytes for each token, 4 for its slot)

Keys are packed beforehand in these. `chat_turns_per_s` and `chat_1m_pool_turns_per_s` count whole turns per second of
CPU time, packing included: acquire, reserve and commit the prompt, reserve and commit the answer, release. 1,000
sessions of 10 turns share 64 system prompts of 2,048 tokens. A turn brings 115 tokens of question and 170 of answer;
whose turn it is is drawn among all turns left (seed 0). That hits 96.3 % of all prompt tokens in an unlimited pool, and
about 77 % in one of 1,000,000 slots. Each chat starts with an empty cache.
"""

import argparse
import gc
import statistics
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from rich.console import Console

from benchmarks import tree_upkeep
from benchmarks.machine import describe_machine, write_report
from benchmarks.tree_report import plot, show
from benchmarks.tree_setup import (
    LEAF_TOKENS,
    NAMESPACE,
    VOCABULARY,
    Tokens,
    advance,
    chain,
    depth,
    full_of_leaves,
    leaf_keys,
    random_tokens,
    store,
)
from hicache.cache import PrefixCache
from hicache.keys import TOKEN_BYTES, PrefixKey
from hicache.radix.node import Node

LEAVES = (1_000, 3_000, 10_000, 30_000, 100_000)
CHILDREN = (1_000, 4_000, 16_000)

SESSIONS, TURNS, SYSTEM_PROMPTS, SYSTEM_TOKENS = 1_000, 10, 64, 2_048
QUESTION_TOKENS, ANSWER_TOKENS = 115, 170
UNLIMITED, LIMITED = 4_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Chat:
    """A run of all sessions."""

    turns_per_s: float
    hit_rate: float
    nodes: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the radix cache's own operations.")
    parser.add_argument("--repeat", type=int, default=3, help="chats and timing loops per row (default 3)")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--plot", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    console = Console()
    # Collections of a heap of 100,000 nodes would land in single measurements at random; what the cache drops it
    # unlinks itself, so nothing piles up without them.
    gc.disable()
    with console.status("measuring") as status:
        rows, scaling, chats = measure(arguments.repeat, status.update)
        demotions = measure_upkeep(arguments.repeat, rows, status.update)
    remarks = {name: f"hit rate {run.hit_rate:.1%}, {run.nodes:,} nodes at the end" for name, run in chats.items()}
    show(console, rows, remarks, scaling)
    report = {
        "rows": rows,
        "evict_one_us_by_leaves": scaling,
        "demote_one_us_by_children": demotions,
        "hit_rates": {name: chat.hit_rate for name, chat in chats.items()},
        "machine": describe_machine(),
        "repeat": arguments.repeat,
        "seed": 0,
    }
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        plot(arguments.plot, rows, scaling)


def measure(repeat: int, progress: Callable[[str], None]) -> tuple[dict[str, float], dict[int, float], dict[str, Chat]]:
    """Return the rows, the cost of one eviction by number of leaves, and the chats."""
    rows: dict[str, float] = {}
    for name, operation in {
        "match_1k_1node_us": lambda: match(1_024, 1),
        "match_1k_of_2k_us": match_one_of_many,
        "match_8k_32node_us": lambda: match(8_192, 32),
        "match_32k_32node_us": lambda: match(32_768, 32),
        "insert_8k_after_8k_us": insert,
        "split_32k_us": split,
        "lock_unlock_depth50_us": lambda: lock_unlock(held=False),
        "lock_unlock_depth50_held_us": lambda: lock_unlock(held=True),
    }.items():
        progress(name)
        rows[name] = median_of(repeat, operation)
    scaling: dict[int, float] = {}
    for leaves in LEAVES:
        progress(f"eviction among {leaves:,} leaves")
        scaling[leaves] = median_of(repeat, lambda: evict_one(leaves))  # noqa: B023 - called before the next one
    rows["evict_one_of_10k_us"] = scaling[10_000]
    rows["evict_one_of_100k_us"] = scaling[100_000]
    rows["evict_100k_to_1k"] = scaling[100_000] / scaling[1_000]
    chats: dict[str, Chat] = {}
    for name, num_slots in {"chat_turns_per_s": UNLIMITED, "chat_1m_pool_turns_per_s": LIMITED}.items():
        progress(name)
        runs = [chat(num_slots) for _ in range(repeat)]
        chats[name] = sorted(runs, key=lambda run: run.turns_per_s)[len(runs) // 2]
        rows[name] = chats[name].turns_per_s
    progress("leaf_bytes")
    rows["leaf_bytes"] = leaf_bytes()
    return rows, scaling, chats


def measure_upkeep(repeat: int, rows: dict[str, float], progress: Callable[[str], None]) -> dict[int, float]:
    """Add what happens beside serving to the rows; return the cost of demoting a leaf by the number of its siblings."""
    progress("demotion")
    demotions = {
        children: median_of(repeat, lambda: tree_upkeep.demote_one(children))  # noqa: B023 - called at once
        for children in CHILDREN
    }
    rows["demote_one_of_16k_us"] = demotions[16_000]
    progress("eviction on the host")
    rows["evict_one_of_16k_on_host_us"] = median_of(repeat, lambda: tree_upkeep.evict_one_on_host(16_000))
    progress("dropping a namespace")
    drops = [tree_upkeep.drop(100_000) for _ in range(repeat)]
    rows["drop_100k_us"] = statistics.median(call for call, _ in drops) * 1e6
    rows["drop_100k_longest_tick_us"] = statistics.median(tick for _, tick in drops) * 1e6
    progress("memory over splits")
    before, after = tree_upkeep.resident_over_splits()
    rows["memory_over_100k_splits"] = after / before
    return demotions


def median_of(repeat: int, measurements: Callable[[], Iterator[float]]) -> float:
    """Return the median of `repeat` rounds' measurements, in microseconds."""
    return statistics.median(seconds for _ in range(repeat) for seconds in measurements()) * 1e6


# ---------------------------------------------------------------------------------------------------------- operations


def match(num_tokens: int, num_nodes: int) -> Iterator[float]:
    cache = PrefixCache(2 * num_tokens)
    key = chain(cache, num_tokens, num_nodes)
    for _ in range(300):
        start = perf_counter()
        lease = cache.acquire(key, now=1.0)
        yield perf_counter() - start
        assert lease.hit.total == num_tokens
        lease.release()


def match_one_of_many() -> Iterator[float]:
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(2_000, 1_024), dtype=np.int32)
    tokens[:, 0] = np.arange(2_000)
    keys = [PrefixKey.of(NAMESPACE, row) for row in tokens]
    cache = PrefixCache(2_000 * 1_024)
    for key in keys:
        store(cache, key)
    for index in np.random.default_rng(1).permutation(2_000).tolist():
        start = perf_counter()
        lease = cache.acquire(keys[index], now=1.0)
        yield perf_counter() - start
        assert lease.hit.total == 1_024
        lease.release()


def insert() -> Iterator[float]:
    tokens = random_tokens(16_384)
    half, whole = PrefixKey.of(NAMESPACE, tokens[:8_192]), PrefixKey.of(NAMESPACE, tokens)
    for _ in range(50):
        cache = PrefixCache(20_000)
        store(cache, half)
        # A second lease on the first half: what follows becomes a node of its own.
        with cache.acquire(half, now=1.0), cache.acquire(whole, now=1.0) as lease:
            assert lease.reserve(8_192, now=1.0)
            start = perf_counter()
            lease.commit(whole, now=1.0)
            yield perf_counter() - start
            assert cache.stats().nodes == 2


def split() -> Iterator[float]:
    tokens = random_tokens(32_768)
    cached = PrefixKey.of(NAMESPACE, tokens)
    parting = PrefixKey.of(NAMESPACE, np.concatenate([tokens[:16_384], tokens[16_384:] + 1]))
    cache = PrefixCache(40_000)
    store(cache, cached)
    for _ in range(100):
        start = perf_counter()
        lease = cache.acquire(parting, now=1.0)
        yield perf_counter() - start
        assert (lease.hit.total, cache.stats().nodes) == (16_384, 2)
        lease.release()
        assert cache.stats().nodes == 1


def lock_unlock(*, held: bool) -> Iterator[float]:
    cache = PrefixCache(10_000)
    key = chain(cache, 5_000, 50)
    with cache.acquire(key, now=1.0) as lease:
        node = lease._node
    assert isinstance(node, Node)
    assert depth(node) == 50
    tree = cache._tree
    if held:
        tree.lock(node)
    rounds = 20
    for _ in range(200):
        start = perf_counter()
        for _ in range(rounds):
            tree.lock(node)
            tree.unlock(node)
        yield (perf_counter() - start) / rounds


def evict_one(leaves: int) -> Iterator[float]:
    cache = full_of_leaves(leaves)
    with cache.acquire(PrefixKey.of(NAMESPACE, []), now=1e9) as lease:
        for _ in range(500):
            before = cache.stats()
            start = perf_counter()
            reserved = lease.reserve(LEAF_TOKENS, now=1e9)
            yield perf_counter() - start
            assert reserved
            assert cache.stats().leaves == before.leaves - 1


def leaf_bytes() -> float:
    leaves = 20_000
    cache = PrefixCache(leaves * LEAF_TOKENS)
    keys = leaf_keys(leaves)
    gc.collect()
    tracemalloc.start()
    try:
        for now, key in enumerate(keys):
            store(cache, key, float(now))
        total, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return total / leaves - LEAF_TOKENS * 2 * TOKEN_BYTES


def chat(num_slots: int) -> Chat:
    """Run all sessions on an empty cache, in CPU time."""
    sessions, order = conversations()
    turns = [0] * SESSIONS
    cache = PrefixCache(num_slots)
    hits = prompts = 0
    start = process_time()
    for now, session in enumerate(order):
        num_tokens = prompt_tokens(turns[session])
        turns[session] += 1
        prompts += num_tokens
        hits += chat_turn(cache, sessions[session], num_tokens, float(now))
    seconds = process_time() - start
    cache.check()
    return Chat(SESSIONS * TURNS / seconds, hits / prompts, cache.stats().nodes)


def conversations() -> tuple[list[Tokens], list[int]]:
    """Return the tokens of every session, and whose turn it is."""
    rng = np.random.default_rng(0)
    system = [random_tokens(SYSTEM_TOKENS, rng) for _ in range(SYSTEM_PROMPTS)]
    a_turn = QUESTION_TOKENS + ANSWER_TOKENS
    sessions = [
        np.concatenate([system[index % SYSTEM_PROMPTS], random_tokens(TURNS * a_turn, rng)])
        for index in range(SESSIONS)
    ]
    return sessions, rng.permutation(np.repeat(np.arange(SESSIONS), TURNS)).tolist()


def prompt_tokens(turn: int) -> int:
    """Return how long a session's prompt is in its turn 0, 1, ..."""
    return SYSTEM_TOKENS + turn * (QUESTION_TOKENS + ANSWER_TOKENS) + QUESTION_TOKENS


def chat_turn(cache: PrefixCache, tokens: Tokens, num_tokens: int, now: float) -> int:
    prompt = PrefixKey.of(NAMESPACE, tokens[:num_tokens])
    with cache.acquire(prompt, now=now, max_tokens=num_tokens - 1) as lease:
        advance(lease, prompt, now)
        advance(lease, PrefixKey.of(NAMESPACE, tokens[: num_tokens + ANSWER_TOKENS]), now)
        return lease.hit.total


if __name__ == "__main__":
    main()
