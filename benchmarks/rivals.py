"""The tree beside SGLang's Rust core: the rows of `benchmarks.tree`, both sides in turn in one process.

    python -m venv ~/rival && ~/rival/bin/pip install --no-deps sglang==0.5.23
    python -m benchmarks.rivals ~/rival/lib/python3.11/site-packages [--repeat N] [--json PATH]

Without that package it says so and measures nothing. On both sides a match finds the prefix, locks it and collects its
slots; `walk` finds it only. An insertion moves the lock, an eviction hands the slots out again, a chat does the same
turns and counts CPU time. Their side has the cheapest allocator that tensors allow, and none of the Python that SGLang
puts around the core. Memory of a leaf is resident memory of a fresh process, beyond the payload: 8 bytes a token here,
16 there.
"""

import argparse
import gc
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import tree
from benchmarks.machine import describe_machine, write_report
from benchmarks.rivals_core import Keys, RustTree, SlotStack, load_bindings
from benchmarks.tree_setup import LEAF_TOKENS, VOCABULARY, leaf_keys, random_tokens, store
from benchmarks.tree_setup import chain as our_chain
from hicache.cache import PrefixCache

Measurements = Callable[[], Iterator[float]]

LEAVES_OF_MEMORY = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description="The tree beside SGLang's Rust core.")
    parser.add_argument("site_packages", type=Path, help="where sglang lies")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each row (default 3)")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    bindings = load_bindings(arguments.site_packages)
    if bindings is None:
        console.print(f"skipped: there is no sglang with a Rust core in {arguments.site_packages}")
        return
    gc.disable()
    with console.status("measuring") as status:
        rows = measure(bindings, arguments.repeat, status.update)
        status.update("memory of a leaf")
        rows["leaf_bytes"] = leaf_bytes(arguments.site_packages)
    show(console, rows)
    if arguments.json:
        found = metadata.distributions(name="sglang", path=[str(arguments.site_packages)])
        version = next((each.version for each in found), "of unknown version")
        report = {
            "rows": {name: {"ours": ours, "theirs": theirs} for name, (ours, theirs) in rows.items()},
            "theirs": f"sglang {version}",
            "machine": describe_machine(),
            "repeat": arguments.repeat,
        }
        write_report(arguments.json, report)


def show(console: Console, rows: dict[str, tuple[float, float]]) -> None:
    table = Table(title="Radix trees", title_justify="left")
    for column in ("row", "ours", "theirs", "theirs / ours"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for name, (ours, theirs) in rows.items():
        table.add_row(name, f"{ours:,.1f}", f"{theirs:,.1f}", f"{theirs / ours:.2f}")
    console.print(table)


def measure(bindings: Any, repeat: int, progress: Callable[[str], None]) -> dict[str, tuple[float, float]]:
    """Return for each row our figure and theirs."""
    rows: dict[str, tuple[float, float]] = {}
    for name, (ours, theirs) in pairs(bindings).items():
        progress(name)
        rounds = [(list(ours()), list(theirs())) for _ in range(repeat)]
        rows[name] = (
            statistics.median(seconds for measured, _ in rounds for seconds in measured) * 1e6,
            statistics.median(seconds for _, measured in rounds for seconds in measured) * 1e6,
        )
    for name, num_slots in {"chat_turns_per_s": tree.UNLIMITED, "chat_1m_pool_turns_per_s": tree.LIMITED}.items():
        progress(name)
        runs = [(tree.chat(num_slots), chat(bindings, num_slots)) for _ in range(repeat)]
        rows[name] = (
            statistics.median(ours.turns_per_s for ours, _ in runs),
            statistics.median(theirs for _, (theirs, _) in runs),
        )
        rows[name.replace("turns_per_s", "hit_percent")] = (100 * runs[0][0].hit_rate, 100 * runs[0][1][1])
    return rows


def pairs(bindings: Any) -> dict[str, tuple[Measurements, Measurements]]:
    def matches(num_tokens: int, num_nodes: int) -> tuple[Measurements, Measurements]:
        return lambda: tree.match(num_tokens, num_nodes), lambda: match(bindings, num_tokens, num_nodes)

    def walks(num_tokens: int, num_nodes: int) -> tuple[Measurements, Measurements]:
        return lambda: peek(num_tokens, num_nodes), lambda: walk(bindings, num_tokens, num_nodes)

    return {
        "match_1k_1node_us": matches(1_024, 1),
        "match_8k_32node_us": matches(8_192, 32),
        "match_32k_32node_us": matches(32_768, 32),
        "walk_1k_1node_us": walks(1_024, 1),
        "walk_8k_32node_us": walks(8_192, 32),
        "walk_32k_32node_us": walks(32_768, 32),
        "insert_8k_after_8k_us": (tree.insert, lambda: insert(bindings)),
        "split_32k_us": (tree.split, lambda: split(bindings)),
        "lock_unlock_depth50_us": (lambda: tree.lock_unlock(held=False), lambda: lock_unlock(bindings)),
        "evict_one_of_1k_us": (lambda: tree.evict_one(1_000), lambda: evict_one(bindings, 1_000)),
        "evict_one_of_10k_us": (lambda: tree.evict_one(10_000), lambda: evict_one(bindings, 10_000)),
        "evict_one_of_100k_us": (lambda: tree.evict_one(100_000), lambda: evict_one(bindings, 100_000)),
    }


def peek(num_tokens: int, num_nodes: int) -> Iterator[float]:
    cache = PrefixCache(2 * num_tokens)
    key = our_chain(cache, num_tokens, num_nodes)
    for _ in range(300):
        start = perf_counter()
        hit = cache.peek(key)
        yield perf_counter() - start
        assert hit.total == num_tokens


# ----------------------------------------------------------------------------------------------------- their operations


def match(bindings: Any, num_tokens: int, num_nodes: int) -> Iterator[float]:
    rust, key = chain(bindings, num_tokens, num_nodes)
    for _ in range(300):
        start = perf_counter()
        hold = rust.acquire(key)
        yield perf_counter() - start
        assert len(hold.slots) == num_tokens
        rust.unlock(hold.node, hold.receipt)


def walk(bindings: Any, num_tokens: int, num_nodes: int) -> Iterator[float]:
    rust, key = chain(bindings, num_tokens, num_nodes)
    for _ in range(300):
        start = perf_counter()
        rust.match(key)
        yield perf_counter() - start


def insert(bindings: Any) -> Iterator[float]:
    key = random_tokens(16_384).astype(np.int64)
    slots = torch.arange(16_384)
    for _ in range(50):
        rust = RustTree(bindings)
        rust.insert(key[:8_192], slots[:8_192].clone())
        hold = rust.acquire(key)
        start = perf_counter()
        node, _ = rust.insert(key, slots, known=8_192)
        rust.lock(node)
        rust.unlock(hold.node, hold.receipt)
        yield perf_counter() - start


def split(bindings: Any) -> Iterator[float]:
    key = random_tokens(32_768).astype(np.int64)
    parting = np.concatenate([key[:16_384], key[16_384:] + 1])
    for _ in range(100):
        rust = RustTree(bindings)
        rust.insert(key, torch.arange(len(key)))
        start = perf_counter()
        hold = rust.acquire(parting)
        yield perf_counter() - start
        assert len(hold.slots) == 16_384


def lock_unlock(bindings: Any) -> Iterator[float]:
    rust, key = chain(bindings, 5_000, 50)
    node = rust.match(key)
    rounds = 20
    for _ in range(200):
        start = perf_counter()
        for _ in range(rounds):
            rust.unlock(node, rust.lock(node))
        yield (perf_counter() - start) / rounds


def evict_one(bindings: Any, leaves: int) -> Iterator[float]:
    rust = RustTree(bindings)
    order = np.random.default_rng(1).permutation(leaves).tolist()
    keys = leaf_keys(leaves)
    for age in order:
        rust.insert(keys[age].token_ids.astype(np.int64), torch.arange(age * LEAF_TOKENS, (age + 1) * LEAF_TOKENS))
    slots = SlotStack(leaves * LEAF_TOKENS)
    slots.allocate(leaves * LEAF_TOKENS)
    for _ in range(500 if leaves <= 10_000 else 100):
        start = perf_counter()
        take(rust, slots, LEAF_TOKENS)
        yield perf_counter() - start
        assert slots.num_free == 0


def chain(bindings: Any, num_tokens: int, num_nodes: int) -> tuple[RustTree, Keys]:
    """The same path as `tree_setup.chain`."""
    rust = RustTree(bindings)
    key = random_tokens(num_tokens).astype(np.int64)
    rust.insert(key, torch.arange(num_tokens))
    for index in range(1, num_nodes):
        end = index * num_tokens // num_nodes
        rust.insert(np.append(key[:end], VOCABULARY), torch.arange(end + 1))
    return rust, key


# ---------------------------------------------------------------------------------------------------------------- chats


def chat(bindings: Any, num_slots: int) -> tuple[float, float]:
    """Run the sessions of `tree.chat`. Returns turns per second of CPU time, and the hit rate."""
    conversations, order = tree.conversations()
    sessions = [tokens.astype(np.int64) for tokens in conversations]
    rust, slots = RustTree(bindings), SlotStack(num_slots)
    turns = [0] * len(sessions)
    hits = prompts = 0
    start = process_time()
    for session in order:
        prompt_tokens = tree.prompt_tokens(turns[session])
        turns[session] += 1
        prompts += prompt_tokens
        hits += chat_turn(rust, slots, sessions[session], prompt_tokens)
    seconds = process_time() - start
    rust.check()
    return len(order) / seconds, hits / prompts


def chat_turn(rust: RustTree, slots: SlotStack, tokens: Keys, prompt_tokens: int) -> int:
    hold = rust.acquire(tokens[: prompt_tokens - 1])
    hit = len(hold.slots)
    held = torch.cat((hold.slots, take(rust, slots, prompt_tokens - hit)))
    node, freed = rust.insert(tokens[:prompt_tokens], held, known=hit)
    receipt = rust.lock(node)
    rust.unlock(hold.node, hold.receipt)
    end = prompt_tokens + tree.ANSWER_TOKENS
    held = torch.cat((held, take(rust, slots, tree.ANSWER_TOKENS)))
    _, more = rust.insert(tokens[:end], held, known=prompt_tokens)
    rust.unlock(node, receipt)
    for duplicates in (*freed, *more):
        slots.free(duplicates)
    return hit


def take(rust: RustTree, slots: SlotStack, num_tokens: int) -> torch.Tensor:
    missing = num_tokens - slots.num_free
    if missing > 0:
        for freed in rust.evict(missing):
            slots.free(freed)
    return slots.allocate(num_tokens)


# --------------------------------------------------------------------------------------------------------------- memory


def leaf_bytes(site_packages: Path) -> tuple[float, float]:
    """Return what a leaf takes beyond its payload, ours and theirs, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    grown: list[float] = []
    for grow in (grow_ours, grow_theirs):
        with context.Pool(1) as pool:
            grown.append(pool.apply(grow, (site_packages,)) / LEAVES_OF_MEMORY)
    return grown[0] - 8 * LEAF_TOKENS, grown[1] - 16 * LEAF_TOKENS


def grow_ours(_site_packages: Path) -> int:
    keys = leaf_keys(LEAVES_OF_MEMORY)
    cache = PrefixCache(LEAVES_OF_MEMORY * LEAF_TOKENS)
    before = resident_bytes()
    for age, key in enumerate(keys):
        store(cache, key, float(age))
    return resident_bytes() - before


def grow_theirs(site_packages: Path) -> int:
    keys = leaf_keys(LEAVES_OF_MEMORY)
    rust = RustTree(load_bindings(site_packages))
    before = resident_bytes()
    for index, key in enumerate(keys):
        first = index * LEAF_TOKENS
        rust.insert(key.token_ids.astype(np.int64), torch.arange(first, first + LEAF_TOKENS))
    return resident_bytes() - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
