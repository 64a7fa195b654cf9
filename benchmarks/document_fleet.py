"""Tables about fleets, in Markdown, from the JSON that benchmarks write."""

from collections.abc import Mapping
from typing import Any

from benchmarks.document_tables import table
from benchmarks.scaling_model import Assumed, UnitCosts, hearing_s, needs, serving_s

Report = Mapping[str, Any]

_SIZES = (1, 10, 100, 1_000, 10_000)
_US = 1e6


def routing(report: Report) -> str:
    """Fleets of modelled workers, by setting."""
    rows = [
        [
            row["name"],
            f"{100 * row['hit_rate']:.1f}%",
            f"{row['computed_max_over_mean']:.2f}",
            f"{row['first_token_mean_s']:.2f} / {row['first_token_p99_s']:.1f}",
            f"{100 * row['predictions_right']:.1f}%",
            f"{row['digests_agreed']:,} / {row['digests_differed']}",
        ]
        for row in report["rows"]
    ]
    header = (
        "fleet",
        "hit",
        "computed, most by mean",
        "first token, mean / p99, s",
        "predicted right",
        "digests that agree / differ",
    )
    return table(header, rows)


def fleets(report: Report) -> str:
    """Real processes and sockets, by policy and number of workers."""
    rows = [
        [
            f"{row['policy']}, {row['workers']}",
            f"{100 * row['hit_rate']:.1f}%",
            f"{row['computed_max_to_mean']:.3f}",
            f"{100 * row['predictions_right']:.1f}%",
            f"{row['requests_per_s']:.0f}",
            f"{row['cpu_ms_per_request']['gateways']:.1f}",
            f"{row['errors']} of {row['requests']:,}",
        ]
        for row in report["rows"]
    ]
    header = (
        "policy, workers",
        "hit",
        "computed, most by mean",
        "predicted right",
        "requests/s",
        "gateway, ms a request",
        "errors",
    )
    return table(header, rows)


def choice(report: Report) -> str:
    """One choice, by number of workers, and what the index takes."""
    names = list(next(iter(report["choice_us"].values())))
    rows = [[workers, *(f"{costs[name]:,.0f}" for name in names)] for workers, costs in report["choice_us"].items()]
    index = [[name, f"{value:,.2f}"] for name, value in report["index"].items()]
    return f"{table(['workers', *names], rows)}\n\n{table(['index', ''], index)}"


def links(report: Report) -> str:
    rows = [
        [
            f"{row['num_workers']:,}",
            f"{row['messages_per_s']:g}",
            f"{row['pages_per_s']:g}",
            f"{row['cores']:.3f}",
            f"{row['memory_mb']:.0f}",
            f"{row['pages']:,.0f}",
        ]
        for row in report["links"]
    ]
    header = (
        "workers",
        "messages a second each",
        "pages stored and removed a second each",
        "cores",
        "memory, MB",
        "pages known",
    )
    return table(header, rows)


def registry(report: Report) -> str:
    rows = [
        [
            f"{row['entries']:,}",
            f"{row['renewal_redis_us']:.0f}",
            f"{row['look_redis_us']:.0f} / {row['look_gateway_us']:.0f}",
            f"{max(0.0, row['look_after_change_redis_us']):,.0f} / {row['look_after_change_gateway_us']:,.0f}",
            f"{row['read_all_redis_us']:,.0f} / {row['read_all_gateway_us']:,.0f}",
        ]
        for row in report["registry"]
    ]
    header = (
        "entries",
        "renewal, Redis",
        "look, Redis / gateway",
        "look after a change, Redis / gateway",
        "first look, Redis / gateway",
    )
    return table(header, rows)


def unit_costs(scale: Report, fleet: Report, gateway: Report) -> UnitCosts:
    by_case = {(row["num_workers"], row["messages_per_s"], row["pages_per_s"]): row for row in scale["links"]}
    nobody, busy, telling = by_case[(0, 1, 0)], by_case[(50, 20, 0)], by_case[(50, 20, 800)]
    aware = next(row for row in fleet["rows"] if row["policy"] == "cache_aware")
    paced = gateway["paced"]["gateway"]
    largest = max(scale["registry"], key=lambda row: row["entries"])
    return UnitCosts(
        request=aware["cpu_ms_per_request"]["gateways"] / 1e3,
        output_token=paced["core"] / paced["tokens_per_s"],
        link=(busy["cores"] - nobody["cores"]) / 50,
        page=(telling["cores"] - busy["cores"]) / 50 / 800,
        page_bytes=(telling["memory_mb"] - busy["memory_mb"]) * 2**20 / telling["pages"],
        redis_request=scale["requests"][0]["redis_us"] / _US,
        redis_renewal=largest["renewal_redis_us"] / _US,
        redis_look=largest["look_redis_us"] / _US,
    )


def units(scale: Report, fleet: Report, gateway: Report) -> str:
    costs, assumed = unit_costs(scale, fleet, gateway), Assumed()
    hearing, serving = hearing_s(costs, assumed), serving_s(costs, assumed)
    rows = [
        ["a request with 12,000 prompt tokens, and its first token", f"{1e3 * costs.request:.1f} ms", "fleet.json"],
        ["a further token of an answer, among 256 streams", f"{_US * costs.output_token:.0f} µs", "gateway.json"],
        ["a link whose worker reports 20 times a second", f"{1e3 * costs.link:.1f} ms a second", "scale.json"],
        ["a page that is stored, and one that is removed", f"{_US * costs.page:.1f} µs", "scale.json"],
        ["a page in the index", f"{costs.page_bytes:.0f} bytes", "scale.json"],
        ["Redis, a request with limits", f"{_US * costs.redis_request:.0f} µs", "scale.json"],
        ["Redis, a worker that renews its entry", f"{_US * costs.redis_renewal:.0f} µs", "scale.json"],
        ["Redis, a gateway that looks who is there", f"{_US * costs.redis_look:.0f} µs", "scale.json"],
        ["so of one such worker: requests", f"{assumed.requests_per_s:.1f} a second", "arithmetic"],
        ["pages that it stores, and as many that it removes", f"{assumed.pages_per_s:,.0f} a second", "arithmetic"],
        ["what every gateway takes to hear it", f"{1e3 * hearing:.1f} ms a second", "arithmetic"],
        ["what all gateways together take for its requests", f"{1e3 * serving:.0f} ms a second", "arithmetic"],
    ]
    return table(["what", "takes", "from"], rows)


def sizes(scale: Report, fleet: Report, gateway: Report) -> str:
    costs, assumed = unit_costs(scale, fleet, gateway), Assumed()
    found = [needs(workers, costs, assumed) for workers in _SIZES]
    rows = [
        ["requests a second", *(f"{each.requests_per_s:,.0f}" for each in found)],
        ["hearing, as one fleet: cores of each gateway", *(f"{each.hearing_undivided:.2g}" for each in found)],
        ["fleets of at most 50 workers", *(f"{each.fleets:,}" for each in found)],
        ["hearing, in one of these: cores of each gateway", *(f"{each.hearing:.2f}" for each in found)],
        ["gateways, of all fleets", *(f"{each.gateways:,}" for each in found)],
        ["pages in the index of one gateway", *(f"{each.pages / 1e6:.2f} M" for each in found)],
        ["its memory, GB", *(f"{each.index_gb:.2f}" for each in found)],
        ["Redis, cores, of all fleets", *(f"{each.redis:.2g}" for each in found)],
    ]
    return table(["workers", *(f"{size:,}" for size in _SIZES)], rows)
