"""What one worker more costs gateways and Redis: processor time and memory, by what it says.

    python -m benchmarks.scale [--only links|registry|requests] [--json PATH]

Links: one gateway process with N workers that say how busy they are, once a second or twenty times, with or without
what their caches store and remove (`scale_stub`). No requests. Registry: N entries in a Redis, read by a gateway's
reader and renewed by workers' script. Requests: short ones with limits set, one tenant's, through a gateway and one
simulated worker. Processor time is that of the process measured; other processes of the machine
lengthen it little, and the wall times not told here much.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.fleet_client import fleet_client, tokens_request
from benchmarks.fleet_processes import FleetPlan, Member, running_fleet
from benchmarks.machine import describe_machine, write_report
from cli.admin_client.values import Policy
from cli.config import read_tree, set_at
from cli.embedded_redis import EmbeddedRedis
from cli.tied import tied_command
from gateway.dispatch.registrations import Registrations
from gateway.identity.reach import StoreReach
from gateway.observer import NullObserver
from radixgate.v1 import worker_pb2
from worker.registry.entry import document
from worker.registry.keys import REGISTER, keys_of

SECONDS: Final = 20.0
READS: Final = 50
CHANGES: Final = 200
REQUESTS: Final = 2_000
AT_A_TIME: Final = 20
LIMITS: Final = Policy(requests_per_minute=10**6, tokens_per_minute=10**9, max_concurrent_requests=1000)
PROMPT_TOKENS: Final = 500
OUTPUT_TOKENS: Final = 16
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Saying:
    """What each worker of a case says."""

    num_workers: int
    messages_per_s: float
    pages_per_s: float  # stored, and as many removed


CASES: Final = (
    Saying(0, 1, 0),
    Saying(100, 1, 0),
    Saying(1000, 1, 0),
    Saying(10, 20, 0),
    Saying(50, 20, 0),
    Saying(10, 20, 800),
    Saying(50, 20, 800),
)
ENTRIES: Final = (1, 100, 1_000, 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of one worker more.")
    parser.add_argument("--only", choices=MEASURED, action="append", help="this part; may be repeated")
    parser.add_argument("--json", type=Path, metavar="PATH", help="parts that are not measured stay as they are there")
    arguments = parser.parse_args()
    console = Console()
    found: dict[str, object] = {}
    for name in arguments.only or MEASURED:
        title, measure = MEASURED[name]
        with console.status(name):
            found[name] = rows = measure()
        show(console, title, rows)
    if arguments.json:
        before = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        write_report(arguments.json, {**before, **found, "machine": describe_machine()})


def show(console: Console, title: str, rows: list[dict[str, float]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" for value in row.values()))
    console.print(table)


# ------------------------------------------------------------------------------------------------------------- links


def links() -> list[dict[str, float]]:
    return [{**asdict(case), **link_costs(case)} for case in CASES]


def link_costs(case: Saying) -> dict[str, float]:
    """Return what a gateway takes that is connected to these workers and gets no requests."""
    with tempfile.TemporaryDirectory() as name, EmbeddedRedis.start() as redis, talking(case, Path(name)) as port:
        tree = read_tree(None, [], {})
        set_at(tree, ("redis", "url"), redis.url)
        set_at(tree, ("gateway", "http", "listen"), None)
        set_at(tree, ("gateway", "workers"), addresses(case.num_workers, port))
        gateway = Member("gateway", "gateway", (), tree, Path(name))
        gateway.start()
        try:
            gateway.wait_until_ready()
            _wait(lambda: gateway.total("radixgate_gateway_worker_connected") == case.num_workers)
            # Until every worker has stored what it holds, nothing is removed.
            time.sleep(5.0 + (16_384 / case.pages_per_s if case.pages_per_s else 0.0))
            cpu_s, began = gateway.cpu_s(), time.monotonic()
            time.sleep(SECONDS)
            cores = (gateway.cpu_s() - cpu_s) / (time.monotonic() - began)
            return {
                "cores": cores,
                "memory_mb": gateway.memory_mb(),
                "pages": gateway.total("radixgate_gateway_index_size"),
            }
        finally:
            gateway.end()


def addresses(num_workers: int, port: int) -> list[str]:
    """Return addresses that are all this machine, and each another one."""
    return [f"127.0.{number // 250}.{number % 250 + 1}:{port}" for number in range(num_workers)]


@contextmanager
def talking(case: Saying, folder: Path) -> Iterator[int]:
    """Run the workers; yield their port."""
    ready_file = folder / "stub.json"
    options = [f"--messages-per-s={case.messages_per_s}", f"--pages-per-s={case.pages_per_s}"]
    command = [sys.executable, "-m", "benchmarks.scale_stub", f"--ready-file={ready_file}", *options]
    process = subprocess.Popen(tied_command(command, death_signal=signal.SIGKILL))
    try:
        _wait(lambda: ready_file.exists() and ready_file.read_text() != "")
        yield int(json.loads(ready_file.read_text())["port"])
    finally:
        process.terminate()
        process.wait(30)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.2)


# ---------------------------------------------------------------------------------------------------------- registry


def registry() -> list[dict[str, float]]:
    return [registry_costs(number) for number in ENTRIES]


def registry_costs(num_entries: int) -> dict[str, float]:
    """Return µs of processor time of Redis and of whoever asks, for each call."""
    with EmbeddedRedis.start() as redis:
        return asyncio.run(_registry_costs(num_entries, redis))


async def _registry_costs(num_entries: int, redis: EmbeddedRedis) -> dict[str, float]:
    client = Redis.from_url(redis.url, decode_responses=True)
    server = psutil.Process((await client.info("server"))["process_id"])
    register = client.register_script(REGISTER)

    async def enter(number: int, slots: int = 1 << 20) -> None:
        told = worker_pb2.WorkerRegistration(
            worker_id=f"worker-{number}", address=f"10.1.{number // 250}.{number % 250 + 1}:50061",
            incarnation=f"{number:032x}", model="llama-3.1-8b-instruct", model_revision="7c529e0d8aaaf80e7729fdd11d548",
            context_length=131_072, page_size=1, device_slots=slots, host_slots=1 << 21,
        )  # fmt: skip
        args: list[str | int] = [told.worker_id, told.incarnation, told.address, document(told), 600_000, "0"]
        await register(keys=keys_of(told.worker_id), args=args)

    for number in range(num_entries):
        await enter(number)
    first = await _spent(server, 1, lambda _: Registrations(client, StoreReach(client, 30.0, NullObserver())).read())
    reader = Registrations(client, StoreReach(client, 30.0, NullObserver()))
    await reader.read()
    again = await _spent(server, READS * 10, lambda _: reader.read())
    changed = await _changed(server, reader, enter)
    renewals = await _spent(server, READS * 20, lambda turn: enter(turn % num_entries))
    await client.aclose()
    return {
        "entries": num_entries,
        "renewal_redis_us": renewals[0],
        "look_redis_us": again[0],
        "look_gateway_us": again[1],
        "look_after_change_redis_us": changed[0],
        "look_after_change_gateway_us": changed[1],
        "read_all_redis_us": first[0],
        "read_all_gateway_us": first[1],
    }


async def _changed(
    server: psutil.Process, reader: Registrations, enter: Callable[[int, int], Awaitable[None]]
) -> tuple[float, float]:
    """Return what a look costs after one entry has changed: what both cost, less the change."""

    async def change_and_look(turn: int) -> None:
        await enter(0, 1000 + turn)
        await reader.read()

    both = await _spent(server, CHANGES, change_and_look)
    change = await _spent(server, CHANGES, lambda turn: enter(0, 5000 + turn))
    return both[0] - change[0], both[1] - change[1]


async def _spent(server: psutil.Process, times: int, call: Callable[[int], Awaitable[object]]) -> tuple[float, float]:
    """Return µs for each call: of the server, and of this process."""
    times_before, own_before = server.cpu_times(), time.process_time()
    for turn in range(times):
        await call(turn)
    times_after, own = server.cpu_times(), time.process_time() - own_before
    spent = times_after.user + times_after.system - times_before.user - times_before.system
    return 1e6 * spent / times, 1e6 * own / times


# ---------------------------------------------------------------------------------------------------------- requests


def requests() -> list[dict[str, float]]:
    """Return µs of processor time of Redis and of the gateway for each request."""
    with tempfile.TemporaryDirectory() as name, running_fleet(Path(name), FleetPlan(1)) as fleet:
        key = fleet.make_tenant("acme")
        with fleet.admin() as admin:
            admin.tenants.update("acme", None, LIMITS, ())
        processes = [psutil.Process(fleet.redis.pid), psutil.Process(fleet.gateways[0].pid)]
        before = [_cpu_s(process) for process in processes]
        asyncio.run(_ask(fleet.gateways[0].address, key))
        spent = [_cpu_s(process) - was for process, was in zip(processes, before, strict=True)]
        return [
            {
                "requests": REQUESTS,
                "prompt_tokens": PROMPT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
                "redis_us": 1e6 * spent[0] / REQUESTS,
                "gateway_us": 1e6 * spent[1] / REQUESTS,
            }
        ]


async def _ask(address: str, key: str) -> None:
    prompt = tokens_request(list(range(1000, 1000 + PROMPT_TOKENS)), OUTPUT_TOKENS)
    async with fleet_client([address], key) as client:
        for _ in range(REQUESTS // AT_A_TIME):
            outcomes = await client.ask_all([prompt] * AT_A_TIME)
            failed = [outcome.error for outcome in outcomes if outcome.error]
            if failed:
                raise RuntimeError(failed[0])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


Measure = Callable[[], list[dict[str, float]]]
MEASURED: Final[Mapping[str, tuple[str, Measure]]] = {
    "links": ("A gateway that hears workers", links),
    "registry": ("The registry, µs of processor time", registry),
    "requests": ("A short request, µs of processor time", requests),
}

if __name__ == "__main__":
    main()
