"""What choosing a worker costs a gateway, and what knowing their caches does: time on the event loop, and memory.

    python -m benchmarks.routing_cost [--json PATH]

A prompt of 12,000 tokens; fleets of different size, of which a quarter have half of it. Names, index, score and views
are those of a gateway. Times are medians of CPU time.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, write_report
from gateway.dispatch.worker_view import FleetPages, WorkerView
from gateway.observer import NullObserver
from gateway.routing.cache_aware import CacheAware
from gateway.routing.following import CacheEvent, Following
from gateway.routing.index import DEVICE, PageIndex
from gateway.routing.names import NameScheme
from gateway.routing.router import Placement
from hicache.keys import Namespace, PrefixKey
from radixgate.v1 import worker_pb2

PROMPT_TOKENS = 12_000
SCHEME = NameScheme(b"a model", 64)
WORKERS = (1, 4, 64, 1000)
PAGES = 200_000
REPEATS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a choice, and of an index.")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    choices = {str(number): choice_us(number) for number in WORKERS}
    index = index_costs()
    console = Console()
    table = Table(title=f"A prompt of {PROMPT_TOKENS:,} tokens, µs of CPU time", title_justify="left")
    for name in ("workers", *next(iter(choices.values()))):
        table.add_column(name, justify="right")
    for number, costs in choices.items():
        table.add_row(number, *(f"{each:,.0f}" for each in costs.values()))
    console.print(table)
    for name, value in index.items():
        console.print(f"{name}: {value:,.2f}")
    if arguments.json:
        write_report(arguments.json, {"choice_us": choices, "index": index, "machine": describe_machine()})


def choice_us(num_workers: int) -> dict[str, float]:
    """Return the parts of one request's way to a worker."""
    pages, tokens = FleetPages(4_000_000), np.arange(PROMPT_TOKENS, dtype=np.int32)
    views = [WorkerView(f"worker-{i}", pages, NullObserver()) for i in range(num_workers)]
    described = worker_pb2.GetModelResponse(name_seed=SCHEME.seed, name_page_size=SCHEME.page_size, page_size=1)
    key = PrefixKey.of(Namespace(b"a tenant's key.."), tokens)
    names = SCHEME.names(key)
    for number, view in enumerate(views):
        view.connected(described)
        if number % 4 == 0:
            half = b"".join(names[: len(names) // 2])
            event = worker_pb2.CacheEvent(
                seq=1, change=worker_pb2.CACHE_CHANGE_STORED, tier=worker_pb2.CACHE_TIER_DEVICE, names=half
            )
            view.told(worker_pb2.ConnectResponse(cache_events=[event]))
    router = CacheAware(pages.index)
    candidates = [view.candidate(0) for view in views]
    holders = [each.pages.holder for each in candidates if each.pages is not None]
    sent = iter(range(10**9))

    def send() -> None:
        sequence_id = next(sent)
        views[0].sent(worker_pb2.Submit(sequence_id=sequence_id), key)
        views[0].ended(sequence_id)

    def choose_anew() -> None:
        # Each request has a key of its own, and each of its workers has said something meanwhile.
        fresh = PrefixKey.of(key.namespaces[0], tokens)
        load = worker_pb2.ConnectResponse(load=worker_pb2.WorkerLoad(running_sequences=1))
        views[next(sent) % num_workers].told(load)
        found = [view.candidate(0) for view in views]
        router.choose(Placement("model", fresh), found, time.monotonic())

    return {
        "names": median_us(lambda: SCHEME.names(key)),
        "match": median_us(lambda: pages.index.match(names, holders)),
        "choice, names known": median_us(lambda: router.choose(Placement("model", key), candidates, time.monotonic())),
        "choice, all of it": median_us(choose_anew),
        "sent and ended": median_us(send),
    }


def index_costs() -> dict[str, float]:
    """Return what a page costs: to be told of, to be kept."""
    random = np.random.default_rng(0)
    events = [CacheEvent(i + 1, "stored", "device", random.bytes(16 * 100)) for i in range(PAGES // 100)]
    removed = [CacheEvent(len(events) + 1 + i, "removed", "device", event.packed) for i, event in enumerate(events)]
    tracemalloc.start()
    index = PageIndex(PAGES)
    holder = index.join()
    before, _ = tracemalloc.get_traced_memory()
    Following("worker", holder, None, NullObserver()).events(events)
    after, _ = tracemalloc.get_traced_memory()
    second = index.join()
    Following("second", second, None, NullObserver()).events(events)
    both, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    timed_index = PageIndex(PAGES)
    following = Following("worker", timed_index.join(), None, NullObserver())
    stored_us = cpu_us(lambda: following.events(events)) / PAGES
    removed_us = cpu_us(lambda: following.events(removed)) / PAGES
    held = {name: 1 for event in events for name in (event.packed[at : at + 16] for at in range(0, 1600, 16))}
    snapshot_us = cpu_us(lambda: timed_index.join().replace(DEVICE, held)) / PAGES
    return {
        "bytes for a page at one worker": (after - before) / PAGES,
        "bytes for the same page at another": (both - after) / PAGES,
        "µs for a page stored": stored_us,
        "µs for a page removed": removed_us,
        "µs for a page of a snapshot": snapshot_us,
    }


def median_us(do: Callable[[], object]) -> float:
    return statistics.median(cpu_us(do) for _ in range(REPEATS))


def cpu_us(do: Callable[[], object]) -> float:
    began = time.process_time_ns()
    do()
    return (time.process_time_ns() - began) / 1000


if __name__ == "__main__":
    main()
