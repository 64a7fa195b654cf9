"""A recorded trace against a fleet of simulated workers, through a real gateway and real sockets, by routing policy.

    python -m benchmarks.fleet --workers 4 8 --policies cache_aware round_robin --json out/fleet.json

The trace keeps its order, and passes `--speed` times faster; so do the simulated passes, so that load and queues are
those of the trace, as far as this machine keeps up: `late` says how far it was behind at most. Hits are what clients
are told, which must be what workers have counted. The trace lies beside the repository or where `--trace` says; without
one nothing is measured.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.fleet_client import fleet_client
from benchmarks.fleet_processes import Fleet, FleetPlan, running_fleet
from benchmarks.fleet_replay import Pace, Spent, figures, replay, requests_of
from benchmarks.machine import describe_machine, write_report
from benchmarks.traces import DATA
from cli.replay.trace import Trace, open_trace

POLICIES = ("cache_aware", "round_robin", "least_loaded", "session")
TRACE = DATA / "mooncake" / "conversation_trace.jsonl"


def main() -> None:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    if not arguments.trace.exists():
        console.print(f"skipped: there is no trace {arguments.trace}")
        return
    trace = open_trace(arguments.trace)
    load_before = os.getloadavg()[0]
    rows = []
    for num_workers in arguments.workers:
        for policy in arguments.policies:
            rows.append(_measured(trace, num_workers, policy, arguments, console))
            print_table(rows, console)
    names = ("slots", "gateways", "speed", "outputs", "max_in_flight", "requests", "setting")
    report = {
        "rows": rows,
        "settings": {"trace": arguments.trace.name, **{name: getattr(arguments, name) for name in names}},
        "machine": describe_machine(),
        "load_average_before": load_before,
    }
    if arguments.json:
        write_report(arguments.json, report)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--trace", type=Path, default=TRACE, help="one JSON object a line, see cli.replay.trace")
    add("--workers", type=int, nargs="+", default=[4], help="sizes of the fleet (default 4)")
    add("--gateways", type=int, default=1)
    add("--slots", type=int, default=1 << 20, help="of each worker's device pool (default 1M)")
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), help="of routing (default all)")
    add("--speed", type=float, default=12.0, help="how many times faster than recorded (default 12)")
    add("--outputs", choices=("one", "recorded"), default="one", help="tokens of each answer (default one)")
    add("--max-in-flight", type=int, default=32, help="requests at a time; more wait in order (default 32)")
    add("--requests", type=int, help="of the trace, from its beginning (default all)")
    add("--setting", action="append", default=[], help="A.B=VALUE, of workers and gateways")
    add("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def _measured(
    trace: Trace, num_workers: int, policy: str, arguments: argparse.Namespace, console: Console
) -> dict[str, Any]:
    settings = [
        'log.level="warning"',
        f"worker.cache.num_slots={arguments.slots}",
        f"worker.simulation.speed={arguments.speed}",
        "worker.engine.max_step_tokens=16384",
        "worker.engine.max_chunk_tokens=8192",
        "worker.engine.max_running=128",
        f'gateway.routing.policy="{policy}"',
        *arguments.setting,
    ]
    with tempfile.TemporaryDirectory() as folder:
        plan = FleetPlan(num_workers, arguments.gateways, settings)
        with running_fleet(Path(folder), plan) as fleet, console.status(f"{policy}, {num_workers} workers") as status:
            return {
                "workers": num_workers,
                "policy": policy,
                **asyncio.run(_replayed(fleet, trace, arguments, status.update)),
                "memory_mb": {
                    "gateways": max(gateway.memory_mb() for gateway in fleet.gateways),
                    "workers": max(worker.memory_mb() for worker in fleet.workers),
                },
            }


async def _replayed(
    fleet: Fleet, trace: Trace, arguments: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    total = min(trace.num_requests, arguments.requests or trace.num_requests)
    key = fleet.make_tenant("trace")
    async with fleet_client([gateway.address for gateway in fleet.gateways], key) as client:
        before = Spent.now(fleet)
        replayed = await replay(
            client,
            requests_of(trace, arguments.requests, arguments.outputs == "recorded"),
            Pace(arguments.speed, arguments.max_in_flight),
            lambda number: say(f"{number} of {total} requests") if number % 100 == 0 else None,
        )
        return figures(replayed, before, Spent.now(fleet))


def print_table(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="a trace against simulated workers", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(f"{row['policy']}, {row['workers']}", justify="right")
    for name, cell in _CELLS.items():
        table.add_row(name, *map(cell, rows))
    console.print(table)


def _cpu(of: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['cpu_ms_per_request'][of]:.2f}"


_CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "hit rate": lambda row: f"{row['hit_rate']:.2%}",
    "computed tokens, max/mean": lambda row: f"{row['computed_max_to_mean']:.3f}",
    "hits predicted right": lambda row: f"{row['predictions_right']:.2%}",
    "digests that differ": lambda row: f"{row['gateways_told']['digests_differ']:.0f}",
    "errors": lambda row: str(row["errors"]),
    "wall, s": lambda row: f"{row['wall_s']:.0f}",
    "late at most, s": lambda row: f"{row['late_s']:.2f}",
    "in flight at most": lambda row: str(row["most_in_flight"]),
    "requests/s": lambda row: f"{row['requests_per_s']:.1f}",
    "first token p50, s": lambda row: f"{row['first_token_s'].get('p50', 0):.3f}",
    "first token p99, s": lambda row: f"{row['first_token_s'].get('p99', 0):.3f}",
    "CPU of the gateways, ms/request": _cpu("gateways"),
    "CPU of all workers, ms/request": _cpu("workers"),
    "CPU of the client, ms/request": _cpu("client"),
}


if __name__ == "__main__":
    main()
