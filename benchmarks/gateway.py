"""What a gateway costs: time before the first token, and its share of a processor, beside the least a proxy can do.

    python -m benchmarks.gateway [--json FILE] [--plot FILE]

A worker without a model gives tokens on time (`benchmarks.gateway_stub`). In front of it, by turns: nothing, a bare
grpc.aio proxy that passes bytes on (`benchmarks.gateway_proxy`), and one gateway of ours with everything it does for a
tenant: authentication, quotas with limits set, usage. Measured are

- paced: 256 streams at 50 tokens/s each, and how much of one core whoever stands in between uses;
- unpaced: as many tokens as come through, for each second of processor time of whoever stands in between;
- first token: of one request after the other, direct and through each in between, by turns.

Processor time is that of the process measured alone, so clients and worker beside it don't count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import matplotlib
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, write_report
from benchmarks.processes import running_process
from cli.embedded_redis import EmbeddedRedis
from radixgate.v1 import admin_pb2, admin_pb2_grpc

matplotlib.use("Agg")
from matplotlib import pyplot

ADMIN_TOKEN = "of-a-benchmark-only"
SIDES = ("proxy", "gateway")


@dataclass(frozen=True, slots=True)
class Between:
    """Something to ask: `process` is what its work is counted for."""

    name: str
    target: str
    key: str
    process: psutil.Process


def main() -> None:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    load_before = os.getloadavg()[0]
    report: dict[str, Any] = {}
    with _stand(arguments.rate) as sides:
        report["paced"] = _streams(sides, arguments, console, "paced")
        report["first_token_ms"] = _first_tokens(sides, arguments, console)
    with _stand(0.0) as sides:
        report["unpaced"] = _streams(sides, arguments, console, "unpaced")
    names = ("streams", "rate", "tokens", "requests", "repetitions")
    report["settings"] = {name: getattr(arguments, name) for name in names}
    report["machine"] = describe_machine()
    report["load_average_before"] = load_before
    _print(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        _draw(report, arguments.plot)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--streams", type=int, default=256, help="at a time (default 256)")
    add("--rate", type=float, default=50.0, help="tokens a second of each paced stream (default 50)")
    add("--tokens", type=int, default=500, help="of each stream (default 500)")
    add("--requests", type=int, default=200, help="for the first token, on each side of a repetition (default 200)")
    add("--repetitions", type=int, default=5)
    add("--json", type=Path, help="write all figures here")
    add("--plot", type=Path, help="write a picture here (PNG or SVG)")
    return parser.parse_args()


# --------------------------------------------------------------------------------------------------- what is measured


@contextmanager
def _stand(rate: float) -> Iterator[dict[str, Between]]:
    """Start worker, proxy and gateway; yield them by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker = _started(stack, folder, "worker", ["benchmarks.gateway_stub", "--rate", str(rate)], "")
        proxy = _started(stack, folder, "proxy", ["benchmarks.gateway_proxy", "--backend", worker.target], "")
        redis = stack.enter_context(EmbeddedRedis.start())
        command = ["cli", "gateway", *_settings(worker.target, redis.url)]
        gateway = _started(stack, folder, "gateway", command, "")
        key = _make_tenant(gateway.target)
        yield {
            "direct": worker,
            "proxy": proxy,
            "gateway": Between("gateway", gateway.target, key, gateway.process),
        }


def _settings(worker: str, redis_url: str) -> list[str]:
    values = {
        "gateway.listen": "127.0.0.1:0",
        "gateway.http.listen": "127.0.0.1:0",
        "gateway.metrics_listen": "127.0.0.1:0",
        "gateway.workers": [worker],
        "gateway.admin_token": ADMIN_TOKEN,
        "redis.url": redis_url,
        "log.level": "warning",
    }
    return [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]


def _started(stack: ExitStack, folder: Path, name: str, command: list[str], key: str) -> Between:
    ready_file = folder / f"{name}.json"
    whole = [sys.executable, "-m", *command, "--ready-file", str(ready_file)]
    stack.enter_context(running_process(whole, what=name, is_ready=ready_file.exists, timeout_s=60))
    target = json.loads(ready_file.read_text())["grpc"]
    process = next(each for each in psutil.Process().children() if str(ready_file) in each.cmdline())
    return Between(name, target, key, process)


def _make_tenant(target: str) -> str:
    """Make a tenant with limits that are kept and never reached; return its key."""
    metadata = (("authorization", f"Bearer {ADMIN_TOKEN}"),)
    policy = admin_pb2.TenantPolicy(
        requests_per_minute=10**9, tokens_per_minute=10**12, max_concurrent_requests=10**5, max_queued_requests=10
    )
    with grpc.insecure_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        stub.CreateTenant(
            admin_pb2.CreateTenantRequest(tenant_id="acme", policy=policy), metadata=metadata, wait_for_ready=True
        )
        made = stub.CreateApiKey(admin_pb2.CreateApiKeyRequest(tenant_id="acme"), metadata=metadata)
        return str(made.secret)


# -------------------------------------------------------------------------------------------------------- measurement


def _streams(sides: dict[str, Between], arguments: argparse.Namespace, console: Console, what: str) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for repetition in range(arguments.repetitions):
        for side in SIDES if repetition % 2 == 0 else SIDES[::-1]:
            one = _one_run(sides[side], arguments)
            found[side].append(one)
            console.print(f"{what} {repetition + 1}/{arguments.repetitions} {side}: {one['core']:.1%} of a core")
    return {side: _medians(runs) for side, runs in found.items()}


def _one_run(side: Between, arguments: argparse.Namespace) -> dict[str, float]:
    before = _cpu_s(side.process)
    load = _ask(side, "streams", "--streams", str(arguments.streams), "--tokens", str(arguments.tokens))
    used = _cpu_s(side.process) - before
    return {
        "core": used / load["seconds"],
        "tokens_per_s": load["tokens"] / load["seconds"],
        "tokens_per_cpu_s": load["tokens"] / used,
        "messages": load["messages"],
        "longest_gap_ms": load["longest_gap_s"] * 1000,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _first_tokens(sides: dict[str, Between], arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the medians over repetitions: first token of each side, and what is added to asking directly."""
    names = ("direct", *SIDES)
    runs: list[dict[str, list[float]]] = []
    for repetition in range(arguments.repetitions):
        order = names if repetition % 2 == 0 else names[::-1]
        runs.append({side: _first_token_ms(sides[side], arguments.requests) for side in order})
        console.print(f"first token {repetition + 1}/{arguments.repetitions}")
    figures: dict[str, Any] = {}
    for side in names:
        p50 = [median(run[side]) for run in runs]
        p99 = [_p99(run[side]) for run in runs]
        figures[side] = {"p50": median(p50), "p99": median(p99)}
        if side != "direct":
            figures[side]["added_p50"] = median(median(run[side]) - median(run["direct"]) for run in runs)
            figures[side]["added_p99"] = median(_p99(run[side]) - _p99(run["direct"]) for run in runs)
    return figures


def _first_token_ms(side: Between, requests: int) -> list[float]:
    return [seconds * 1000 for seconds in _ask(side, "first", "--requests", str(requests))["first_token_s"]]


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def _ask(side: Between, what: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gateway_load", what, "--target", side.target, "--key", side.key]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"the clients of {side.name} failed:\n{done.stderr}")
    time.sleep(0.2)  # what a run leaves behind is not the next one's
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


# ------------------------------------------------------------------------------------------------------- presentation


def _print(report: dict[str, Any], console: Console) -> None:
    table = Table("", *SIDES, box=None, header_style="bold", title="What stands between clients and a worker")
    rows = {
        "of one core, paced": ("paced", "core", "{:.1%}"),
        "messages, paced": ("paced", "messages", "{:,.0f}"),
        "longest gap of a stream, p99, ms": ("paced", "longest_gap_ms", "{:.1f}"),
        "tokens for each second of processor, unpaced": ("unpaced", "tokens_per_cpu_s", "{:,.0f}"),
        "first token added, p50, ms": ("first_token_ms", "added_p50", "{:.2f}"),
        "first token added, p99, ms": ("first_token_ms", "added_p99", "{:.2f}"),
    }
    for title, (section, name, form) in rows.items():
        table.add_row(title, *(form.format(report[section][side][name]) for side in SIDES))
    console.print(table)


def _draw(report: dict[str, Any], path: Path) -> None:
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    parts = (
        ("of one core at 256 x 50 tokens/s" if report["settings"]["streams"] == 256 else "of one core, paced",
         [100 * report["paced"][side]["core"] for side in SIDES], "%", 30.0),
        ("tokens per second of processor", [report["unpaced"][side]["tokens_per_cpu_s"] for side in SIDES], "", None),
        ("added to the first token, p50",
         [report["first_token_ms"][side]["added_p50"] for side in SIDES], "ms", 2.0),
    )  # fmt: skip
    for axis, (title, values, unit, target) in zip(axes, parts, strict=True):
        bars = axis.bar(["aio proxy", "gateway"], values, color=["#b8b8b8", "#2a7f62"])
        axis.bar_label(bars, fmt="{:,.3g} " + unit)
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.15)
        if target is not None:
            axis.axhline(target, color="#b03030", linestyle="--", linewidth=1)
            axis.annotate("target", (1.45, target), color="#b03030", fontsize=8, ha="right", va="bottom")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
