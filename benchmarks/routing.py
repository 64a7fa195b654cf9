"""Where requests go: hit rates and evenness of fleets of modelled workers on a public trace, by policy and setting.

    python -m benchmarks.routing [--data FOLDER] [--only NAME] [--jobs N] [--json PATH] [--plot PATH]

Caches, views, index and score are the real ones; servers and the wire are modelled (see `fleet_model`). Prompts are
served in the order and at the times of the trace. Hit rates are of all prompt tokens, from a cold start. An output of
one token is what other simulators of this trace assume; "outputs" decodes and caches as many as were recorded.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.fleet_model import ModelFleet, Request, WorkerModel
from benchmarks.machine import describe_machine, write_report
from benchmarks.traces import DATA
from cli.replay.trace import open_trace
from gateway.dispatch.worker_view import FleetPages
from gateway.routing.cache_aware import CacheAware
from gateway.routing.router import Router
from gateway.routing.score import Weights
from gateway.routing.simple import BySession, LeastLoaded, RoundRobin

matplotlib.use("Agg")
from matplotlib import pyplot

MILLION = 2**20
ONE_CACHE = {4: 18.5, 8: 27.1}  # hit rates in % of one cache with all slots, by workers of a million each


@dataclass(frozen=True, slots=True)
class Setting:
    """One fleet under one load."""

    num_workers: int = 4
    device_slots: int = MILLION
    host_slots: int = 0
    num_gateways: int = 1
    pace: float = 1.0  # times as fast as recorded
    outputs: bool = False
    slow_worker: float = 1.0  # the speed of one of them
    policy: str = "cache_aware"
    compute_price: float | None = None  # None: as built in


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of it."""

    hit_rate: float
    computed_max_over_mean: float
    slow_share: float  # of all computed tokens, that of the first worker
    first_token_mean_s: float
    first_token_p99_s: float
    in_flight_max_over_mean: float  # of sequences at a time
    predictions_right: float
    digests_agreed: int
    digests_differed: int


SETTINGS: dict[str, Setting] = {
    "4 workers": Setting(),
    "4 workers, round robin": Setting(policy="round_robin"),
    "4 workers, least loaded": Setting(policy="least_loaded"),
    "4 workers, two gateways": Setting(num_gateways=2),
    "4 workers, 10 times slower": Setting(pace=0.1),
    "4 workers, 1.8 times faster": Setting(pace=1.8),
    "4 workers, 10 times faster": Setting(pace=10.0),
    "4 workers, outputs": Setting(outputs=True),
    "4 workers, outputs, two gateways": Setting(outputs=True, num_gateways=2),
    "4 workers, one 4 times slower": Setting(slow_worker=0.25),
    "4 workers, a quarter of the slots, host": Setting(device_slots=MILLION // 4, host_slots=3 * MILLION // 4),
    "8 workers": Setting(num_workers=8),
    "8 workers, round robin": Setting(num_workers=8, policy="round_robin"),
    "8 workers, two gateways": Setting(num_workers=8, num_gateways=2),
    **{f"4 workers, price {price:g}": Setting(compute_price=price) for price in (1.0, 4.0, 12.0, 48.0)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit rate and evenness of fleets.")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="where public traces lie")
    parser.add_argument("--only", metavar="NAME", action="append", help="one setting; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="settings at a time; no figure depends on it")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--plot", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    trace = arguments.data / "mooncake" / "conversation_trace.jsonl"
    chosen = {name: SETTINGS[name] for name in arguments.only or SETTINGS}
    console = Console()
    with console.status("serving") as status, ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        running = {name: pool.submit(measure, setting, trace) for name, setting in chosen.items()}
        for done, _ in enumerate(as_completed(running.values()), start=1):
            status.update(f"{done} of {len(running)} settings")
    found = {name: future.result() for name, future in running.items()}
    show(console, found)
    if arguments.json:
        rows = [{"name": name, **asdict(SETTINGS[name]), **asdict(each)} for name, each in found.items()]
        report = {
            "trace": "mooncake conversation",
            "worker": asdict(WorkerModel(device_slots=MILLION)),
            "weights": asdict(Weights()),
            "one_cache_hit_percent": ONE_CACHE,
            "rows": rows,
            "machine": describe_machine(),
        }
        write_report(arguments.json, report)
    if arguments.plot:
        plot(arguments.plot, found)


def measure(setting: Setting, trace: Path) -> Figures:
    model = WorkerModel(device_slots=setting.device_slots, host_slots=setting.host_slots)
    speeds = [setting.slow_worker, *[1.0] * (setting.num_workers - 1)]
    fleet = ModelFleet(model, setting.num_workers, router_of(setting), num_gateways=setting.num_gateways, speeds=speeds)
    fleet.run(requests_of(trace, setting))
    tallies = [worker.tally for worker in fleet.workers]
    computed = np.array([each.computed_tokens for each in tallies], dtype=np.float64)
    first_token_s = np.concatenate([each.first_token_s for each in tallies])
    in_flight = np.array([worker.sequence_seconds for worker in fleet.workers])
    forecasts = [gateway.forecasts for gateway in fleet.gateways]
    right = sum(each.right for each in forecasts)
    return Figures(
        hit_rate=1.0 - float(computed.sum()) / sum(each.prompt_tokens for each in tallies),
        computed_max_over_mean=float(computed.max() / computed.mean()),
        slow_share=float(computed[0] / computed.sum()),
        first_token_mean_s=float(first_token_s.mean()),
        first_token_p99_s=float(np.percentile(first_token_s, 99)),
        in_flight_max_over_mean=float(in_flight.max() / in_flight.mean()),
        predictions_right=right / sum(each.right + each.over + each.under for each in forecasts),
        digests_agreed=sum(each.agreed for each in forecasts),
        digests_differed=sum(each.disagreed for each in forecasts),
    )


def router_of(setting: Setting) -> Callable[[FleetPages], Router]:
    weights = Weights()
    if setting.compute_price is not None:
        weights = replace(weights, compute_price=setting.compute_price)
    routers: dict[str, Callable[[FleetPages], Router]] = {
        "cache_aware": lambda pages: CacheAware(pages.index, weights),
        "round_robin": lambda pages: RoundRobin(),
        "least_loaded": lambda pages: LeastLoaded(),
        "session": lambda pages: BySession(),
    }
    return routers[setting.policy]


def requests_of(trace: Path, setting: Setting) -> Iterator[Request]:
    with trace.open(encoding="utf-8") as lines:
        outputs = [json.loads(line)["output_length"] if setting.outputs else 1 for line in lines]
    for request, output in zip(open_trace(trace), outputs, strict=True):
        yield Request(request.timestamp_s / setting.pace, request.prompt, max(1, output))


def show(console: Console, found: dict[str, Figures]) -> None:
    table = Table(title="The conversation trace over fleets of modelled workers", title_justify="left")
    for name in (
        "setting",
        "hit %",
        "computed max/mean",
        "first token, mean s",
        "p99 s",
        "in flight",
        "expected right %",
    ):
        table.add_column(name, justify="left" if name == "setting" else "right")
    for name, each in found.items():
        table.add_row(
            name,
            f"{100 * each.hit_rate:.2f}",
            f"{each.computed_max_over_mean:.3f}",
            f"{each.first_token_mean_s:.2f}",
            f"{each.first_token_p99_s:.1f}",
            f"{each.in_flight_max_over_mean:.2f}",
            f"{100 * each.predictions_right:.2f}",
        )
    console.print(table)


def plot(path: Path, found: dict[str, Figures]) -> None:
    """Hit rate, evenness and waiting, a bar for each setting; what one cache of all slots hits as a line."""
    names = list(found)
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 0.36 * len(names) + 1.6), layout="constrained", sharey=True)
    hits, evenness, waits = axes
    colors = ["tab:gray" if "robin" in name or "least" in name else "tab:blue" for name in names]
    hits.barh(names, [100 * each.hit_rate for each in found.values()], color=colors)
    for num_workers, style in ((4, "--"), (8, ":")):
        label = f"one cache of {num_workers} million slots"
        hits.axvline(ONE_CACHE[num_workers], color="black", linestyle=style, linewidth=1, label=label)
    hits.set(xlabel="prompt tokens hit, %")
    figure.legend(fontsize=8, loc="outside upper left", ncols=2)
    evenness.scatter([each.computed_max_over_mean for each in found.values()], names, color=colors)
    evenness.axvline(1.1, color="black", linestyle="--", linewidth=1)
    evenness.set(xlabel="computed tokens, largest worker over mean", xlim=(0.99, None))
    waits.barh(names, [each.first_token_mean_s for each in found.values()], color=colors)
    waits.set(xlabel="time to first token, mean, s", xscale="log")
    hits.invert_yaxis()
    for each in axes:
        each.grid(alpha=0.3, axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
