"""What a gateway costs: time before the first token, and its share of a processor, beside the least a proxy can do.

    python -m benchmarks.gateway [--json FILE] [--plot FILE]

A worker without a model gives tokens on time (`benchmarks.gateway_stub`). In front of it, by turns: nothing, a bare
grpc.aio proxy that passes bytes on (`benchmarks.gateway_proxy`), and one gateway of ours with everything it does for a
tenant: authentication, quotas with limits set, usage. Over HTTP the same gateway again and, where it is installed
(`make peer-smg`), smg, which passes bytes on for whoever asks. Measured are

- paced: 256 streams at 50 tokens/s each, and how much of one core whoever stands in between uses;
- unpaced: as many tokens as come through, for each second of processor time of whoever stands in between;
- first token: of one request after the other, direct and through each in between, by turns.

Processor time is that of the process measured alone, so clients and worker beside it don't count.
"""

import argparse
import json
import os
import socket
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
import psutil
from rich.console import Console

from benchmarks.gateway_report import draw, print_table
from benchmarks.machine import describe_machine, write_report
from benchmarks.processes import running_process
from cli.embedded_redis import EmbeddedRedis
from radixgate.v1 import admin_pb2, admin_pb2_grpc

ADMIN_TOKEN = "of-a-benchmark-only"
# What stands in between, and what is asked directly to know what it adds.
DIRECT = {"proxy": "direct", "gateway": "direct", "gateway http": "direct http", "smg http": "direct http"}
SMG = Path(__file__).resolve().parents[1] / ".cache" / "peers" / "smg" / "bin" / "smg"


@dataclass(frozen=True, slots=True)
class Side:
    """Something to ask: `process` is what its work is counted for."""

    name: str
    target: str
    process: psutil.Process
    key: str = ""
    arguments: tuple[str, ...] = ()  # of clients


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
    print_table(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        draw(report, arguments.plot)


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
def _stand(rate: float) -> Iterator[dict[str, Side]]:
    """Start workers and all that stands before them; yield them by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, *command: str) -> tuple[dict[str, str], psutil.Process]:
            ready_file = folder / f"{name}.json"
            whole = [sys.executable, "-m", *command, "--ready-file", str(ready_file)]
            started = stack.enter_context(running_process(whole, what=name, is_ready=ready_file.exists, timeout_s=60))
            return json.loads(ready_file.read_text()), psutil.Process(started.pid)

        sides: dict[str, Side] = {}

        def add(name: str, target: str, process: psutil.Process, key: str = "") -> None:
            sides[name] = Side(name, target, process, key, ("--http",) if name.endswith("http") else ())

        ready, process = start("worker", "benchmarks.gateway_stub", "--rate", str(rate))
        worker = ready["grpc"]
        add("direct", worker, process)
        ready, process = start("proxy", "benchmarks.gateway_proxy", "--backend", worker)
        add("proxy", ready["grpc"], process)
        redis = stack.enter_context(EmbeddedRedis.start())
        ready, process = start("gateway", "cli", "gateway", *_settings(worker, redis.url))
        key = _make_tenant(ready["grpc"])
        add("gateway", ready["grpc"], process, key)
        add("gateway http", ready["http"], process, key)
        ready, process = start("http-worker", "benchmarks.gateway_http_stub", "--rate", str(rate))
        add("direct http", ready["http"], process)
        if SMG.exists():
            add("smg http", *_start_smg(stack, ready["http"]))
        yield sides


def _start_smg(stack: ExitStack, worker: str) -> tuple[str, psutil.Process]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{free.getsockname()[1]}"
    port = target.rpartition(":")[2]
    command = [str(SMG), "launch", "--worker-urls", f"http://{worker}", "--host", "127.0.0.1", "--port", port]
    command += ["--policy", "round_robin", "--log-level", "warn"]
    log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "smg.log"
    started = stack.enter_context(
        running_process(command, what="smg", is_ready=lambda: _answers(target), timeout_s=60, log=log)
    )
    return target, psutil.Process(started.pid)


def _answers(target: str) -> bool:
    """Whether a request goes all the way to the worker."""
    ask = [sys.executable, "-m", "benchmarks.gateway_load", "first", "--http", "--requests", "1", "--target", target]
    return subprocess.run(ask, capture_output=True, timeout=60, check=False).returncode == 0


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


def _streams(sides: dict[str, Side], arguments: argparse.Namespace, console: Console, what: str) -> dict[str, Any]:
    between = [name for name in sides if name in DIRECT]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in between}
    for repetition in range(arguments.repetitions):
        for name in between if repetition % 2 == 0 else between[::-1]:
            one = _one_run(sides[name], arguments)
            found[name].append(one)
            console.print(f"{what} {repetition + 1}/{arguments.repetitions} {name}: {one['core']:.1%} of a core")
    return {name: _medians(runs) for name, runs in found.items()}


def _one_run(side: Side, arguments: argparse.Namespace) -> dict[str, float]:
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
    """Return the processor time of a process and of what it has started, in seconds."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _first_tokens(sides: dict[str, Side], arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Return the medians over repetitions: first token of each side, and what is added to asking directly."""
    runs: list[dict[str, list[float]]] = []
    for repetition in range(arguments.repetitions):
        order = list(sides) if repetition % 2 == 0 else list(sides)[::-1]
        runs.append({name: _first_token_ms(sides[name], arguments.requests) for name in order})
        console.print(f"first token {repetition + 1}/{arguments.repetitions}")
    figures: dict[str, Any] = {}
    for name in sides:
        figures[name] = {
            "p50": median(median(run[name]) for run in runs),
            "p99": median(_p99(run[name]) for run in runs),
        }
        if direct := DIRECT.get(name):
            figures[name]["added_p50"] = median(median(run[name]) - median(run[direct]) for run in runs)
            figures[name]["added_p99"] = median(_p99(run[name]) - _p99(run[direct]) for run in runs)
    return figures


def _first_token_ms(side: Side, requests: int) -> list[float]:
    return [seconds * 1000 for seconds in _ask(side, "first", "--requests", str(requests))["first_token_s"]]


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def _ask(side: Side, what: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gateway_load", what, "--target", side.target, "--key", side.key]
    done = subprocess.run(
        [*command, *side.arguments, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the clients of {side.name} failed:\n{done.stderr}")
    time.sleep(0.2)  # what a run leaves behind is not the next one's
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


if __name__ == "__main__":
    main()
