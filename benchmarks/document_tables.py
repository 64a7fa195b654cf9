"""Tables in Markdown from the JSON that benchmarks write. Knows their keys, and nothing of where the tables go."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.adapters_report import labels
from benchmarks.breakdown_report import STEP_COLUMNS
from benchmarks.gateway_report import rows as gateway_rows
from benchmarks.step import PARTS
from benchmarks.ttft_report import formula
from benchmarks.workloads import TITLES

Report = Mapping[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def conditions(report: Report) -> str:
    """What a report's figures were measured on, as one line."""
    machine = report["machine"]
    load, scale = report.get("load_average_before"), report.get("settings", {}).get("scale", 1)
    packages = machine["packages"]
    parts = [
        machine.get("date"),
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        f"Python {machine['python']}, torch {packages['torch']}, transformers {packages['transformers']}",
        None if load is None else f"load average before it {load:.2f}",
        None if scale == 1 else f"all sizes times {scale}: to try the programs out, no figures to quote",
    ]
    return f"*{'; '.join(part for part in parts if part)}*"


def workloads(report: Report) -> str:
    """Each cell ours, the peer's, and ours divided by that."""
    rows = []
    for name, found in report["workloads"].items():
        rows.append(
            [
                f"{name}: {TITLES[name]}",
                _beside(found, "wall_s", "{:.2f}"),
                _beside(found, "ttft_mean_s", "{:.2f}"),
                _beside(found, "itl_mean_ms", "{:.1f}"),
                _beside(found, "cached_tokens", "{:,.0f}", ratio=False) + f" of {found['prompt_tokens']:,.0f}",
            ]
        )
        rows.extend(
            [f"{name}, {phase}", "", _beside(found, f"ttft_{phase}_s", "{:.2f}"), "", ""]
            for phase in ("cold", "warm")
            if f"ttft_{phase}_s" in found
        )
    return table(["workload", "wall, s", "first token, mean, s", "between tokens, ms", "cached tokens"], rows)


def start(report: Report) -> str:
    rows = [
        ["ready after, s", _beside(report, "ready_after_s", "{:.1f}")],
        ["first answer after, s", _beside(report, "first_answer_after_s", "{:.1f}")],
        ["peak memory of all processes, MB", _beside(_most_memory(report), "peak_rss_mb", "{:,.0f}")],
    ]
    return table(["", "ours / peer (ratio)"], rows)


def _most_memory(report: Report) -> Report:
    """The largest over all workloads, which run in the same processes."""
    sides = {"": list(report["workloads"].values()), "peer": [f.get("peer", {}) for f in report["workloads"].values()]}
    most = {side: max((f.get("peak_rss_mb") or 0 for f in found), default=0) for side, found in sides.items()}
    if not most["peer"]:
        return {"peak_rss_mb": most[""]}
    return {
        "peak_rss_mb": most[""],
        "peer": {"peak_rss_mb": most["peer"]},
        "ratio": {"peak_rss_mb": most[""] / most["peer"]},
    }


def bf16_steps(report: Report) -> str:
    return _steps(report, "bf16")


def fp32_steps(report: Report) -> str:
    return _steps(report, "fp32")


def _steps(report: Report, dtype: str) -> str:
    if dtype not in report["numbers"]:
        return f"TBD: nothing was measured in {dtype}."
    found = report["numbers"][dtype]
    bytes_per_weight = {"bf16": 2, "fp32": 4}[dtype]
    reads = " and ".join(
        f"{speed / 1e9:.0f} GB/s with {threads} {'thread' if threads == '1' else 'threads'}"
        for threads, speed in report["bandwidth_bytes_per_s"].items()
    )
    head = (
        f"Read at {reads}; products at {found['flop_per_s'] / 1e9:,.0f} GFLOP/s at best; "
        f"{found['weights'] * bytes_per_weight / 1e6:,.0f} MB of weights."
    )
    rows = [[name, *(f"{figures[key]:.2f}" for key in STEP_COLUMNS)] for name, figures in found["steps"].items()]
    return f"{head}\n\n{table(['ms a step', *STEP_COLUMNS.values()], rows)}"


def engine(report: Report) -> str:
    rows = [
        [
            dtype,
            batch,
            f"{figures['wall_ms']:.2f}",
            f"{figures['pass_ms']:.2f}",
            f"{figures['overhead_ms']:.2f}",
            f"{figures['overhead_share']:.1%}",
            f"{figures['overhead_share_with_sampling']:.1%}",
        ]
        for dtype, found in report["numbers"].items()
        for batch, figures in found["engine"].items()
    ]
    header = ["", "sequences", "step, ms", "its pass, ms", "beside it, ms", "share of the step", "share, with sampling"]
    return table(header, rows)


def engine_parts(report: Report) -> str:
    found: Mapping[str, Any] = next(iter(report["numbers"].values()))["engine"]
    rows = [
        [when, part, *(f"{figures['parts_us'].get(part, 0.0):.0f}" for figures in found.values())]
        for when, parts in PARTS.items()
        for part in parts
    ]
    return table(["when, seen from the pass", "part", *(f"{batch} sequences, µs" for batch in found)], rows)


def transport(report: Report) -> str:
    if "live" not in report:
        return "TBD: no stack was started."
    rows = [
        [
            batch,
            f"{figures['request_ms']:.0f}",
            f"{figures['transport_ms']:.1f}",
            f"{figures['transport_share']:.1%}",
            f"{figures['transport_of_ttft_ms']:.1f}",
            f"{figures['step_ms']:.1f}",
        ]
        for batch, figures in report["live"].items()
    ]
    header = [
        "requests at once",
        "request, ms",
        "transport, ms",
        "share",
        "in front of the first token, ms",
        "step, ms",
    ]
    return table(header, rows)


def attention(report: Report) -> str:
    """Of one length of context, which is enough to choose by."""
    cases: Mapping[str, Mapping[str, float]] = report["step_ms"]
    names = list(next(iter(cases.values())))
    rows = [[case, *(f"{found[name]:.1f}" for name in names)] for case, found in cases.items() if " 1500" in case]
    return table(["ms for 30 layers", *names], rows)


def ttft(report: Report) -> str:
    rows = [
        [
            f"{point['prompt_tokens']:,}",
            f"{point['cached_tokens']:,}",
            f"{1e3 * point['ttft_s']:,.0f}",
            f"{1e3 * point['predicted_s']:,.0f}",
            f"{point['deviation']:+.0%}",
        ]
        for point in report["points"]
    ]
    fitted = f"Fitted: {formula(report)}. It is off by {report['max_deviation']:.0%} at worst."
    return f"{fitted}\n\n{table(['prompt', 'cached', 'first token, ms', 'fitted, ms', 'off by'], rows)}"


def adapters(report: Report) -> str:
    """What adapters cost two workloads, and what it costs to have more of them than places."""
    names = labels(report)
    ratios = {"one": "ratio_one", "many": "ratio_many"}
    rows = [
        [
            f"{workload}, {names[side]}",
            f"{found[side]['wall_s']:.2f}",
            f"{found[ratios[side]]:.2f}" if side in ratios else "",
            f"{found[side]['ttft_mean_s']:.2f}",
            f"{found[side]['itl_mean_ms']:.1f}",
        ]
        for workload, found in report["speed"].items()
        for side in names
    ]
    speed = table(["", "wall, s", "to base", "first token, mean, s", "between tokens, ms"], rows)
    places, settings = report["places"], report["settings"]
    waits = ", ".join(
        f"{places[side]['adapters']} adapters {1e3 * places[side]['ttft_p99_s']:,.0f} ms"
        for side in ("fitting", "crowded")
    )
    about = f"Rank {settings['rank']}, every linear layer; medians of {settings['repetitions']}."
    arriving = (
        f"{places['places']} places, {places['requests_per_s']:.1f} requests a second, adapters drawn by Zipf's law"
    )
    within = f"99 of 100 first tokens within: {waits}, {places['ratio']:.2f} times as long."
    return f"{about}\n\n{speed}\n\n{arriving}; {within}"


def gateway(report: Report) -> str:
    """What stands between clients and a worker, a column each."""
    settings = report["settings"]
    lines = (
        f"{settings['streams']} streams of {settings['tokens']} tokens, paced at {settings['rate']:g} a second each. "
        f"Medians of {settings['repetitions']}; of first tokens, {settings['requests']} requests in each."
    )
    rows = [[title, *figures] for title, figures in gateway_rows(report)]
    return f"{lines}\n\n{table(['', *report['paced']], rows)}"


def flood(report: Report) -> str:
    """What a tenant's first tokens take alone and beside another one's flood."""
    settings = report["settings"]
    rows = [
        [side, *(f"{1e3 * report[side][name]:,.0f}" for name in ("ttft_p50_s", "ttft_p99_s"))]
        for side in ("alone", "beside")
    ]
    rows.append(["ratio", f"{report['ratio_ttft_p50_s']:.2f}", f"{report['ratio_ttft_p99_s']:.2f}"])
    guest = f"{settings['rate']:g} requests a second of {settings['prompt']} tokens"
    other = f"{settings['flood']} at a time of {settings['flood_prompt']} in and {settings['flood_output']} out"
    about = f"The guest: {guest}. The flood: {other}. Medians of {settings['repetitions']}, ratios of pairs."
    return f"{about}\n\n{table(['first token, ms', 'p50', 'p99'], rows)}"


def _beside(found: Report, key: str, form: str, *, ratio: bool = True) -> str:
    """Return ours, and if there is one the peer's and the ratio."""
    value = found.get(key)
    ours = "–" if value is None else form.format(value)
    theirs = found.get("peer", {}).get(key)
    if theirs is None:
        return ours
    share = found.get("ratio", {}).get(key)
    return f"{ours} / {form.format(theirs)}" + (f" ({share:.2f})" if ratio and share is not None else "")
