"""Panels about which worker gets a request, and about what gateways know of workers' caches."""

from grafana_foundation_sdk.builders import stat, timeseries

from deploy.grafana.colours import BAD, CALM, EVENTS, GOOD, REASONS, TIERS, UPKEEP, WARNING
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.processes import WORKER_INFO, named_process
from deploy.grafana.queries import GATEWAYS, WORKERS, Query, moving, or_zero, rate, ratio, series, total

_PREDICTIONS = "radixgate_gateway_predictions_total"
_COMPUTED = "radixgate_computed_prompt_tokens_total"
_OF_RIGHT = ratio(rate(_PREDICTIONS, GATEWAYS, 'outcome="right"'), rate(_PREDICTIONS, GATEWAYS))
# What the alert calls wrong.
_RIGHT_ENOUGH = 0.98
_HOT = 1.5


def right_now() -> stat.Panel:
    about = (
        "Share of requests that found on their worker what the gateway expected there, page by page "
        f"(`{_PREDICTIONS}`). Below 98 % something is missed: see Expectations and Upkeep of the index."
    )
    figure = Figure("percentunit", 1, ((None, BAD), (0.9, WARNING), (_RIGHT_ENOUGH, GOOD)))
    return number("Right about hits", about, Query(_OF_RIGHT, "right"), figure)


def evenness_now() -> stat.Panel:
    about = (
        f"What the busiest worker computes, by the mean of all that serve its model (`{_COMPUTED}`; the worst model). "
        "1 is even. Above 1.5, with requests that wait there, one worker has the work of several: see Prompt tokens "
        "computed."
    )
    figure = Figure("short", 2, ((None, GOOD), (1.2, CALM), (_HOT, WARNING)))
    return number("Most by mean", about, Query(f"max({_evenness()})", "most by mean"), figure)


def choices() -> timeseries.Panel:
    about = (
        "Workers chosen per second, by what decided (`radixgate_gateway_choices_total`): what they have of the prompt "
        "(prefix), how little they have to do (load), that they are new (warm_up), that there is no other (only). "
        "Other policies choose by turn or by session. Little prefix beside a high hit rate means that all have it."
    )
    expr = moving(rate("radixgate_gateway_choices_total", GATEWAYS, by=("reason",)))
    return graph("Choices", about, [Query(expr, "{{reason}}")], Look("reqps", REASONS, stacked=True))


def computed() -> timeseries.Panel:
    about = (
        f"Prompt tokens that each worker computes per second (`{_COMPUTED}`). Lines that stay apart for long, with "
        "requests that wait at the upper one, are uneven load."
    )
    expr = moving(rate(_COMPUTED, WORKERS, by=("worker",)))
    return graph("Prompt tokens computed", about, [Query(expr, "{{worker}}")], Look("count:tok/s"))


def expectations() -> timeseries.Panel:
    about = (
        "Share of requests that found on their worker what the gateway expected, page by page; less of it (over), or "
        f"more (under) (`{_PREDICTIONS}`). Over: evicted before its turn. Under: brought there meanwhile, or unknown "
        "to the gateway."
    )
    of_all = rate(_PREDICTIONS, GATEWAYS)
    queries = [
        Query(ratio(rate(_PREDICTIONS, GATEWAYS, f'outcome="{outcome}"'), of_all), outcome)
        for outcome in ("right", "over", "under")
    ]
    look = Look("percentunit", {"right": CALM, "over": BAD, "under": WARNING}, top=1, decimals=1)
    return graph("Expectations", about, queries, look)


def known_pages() -> timeseries.Panel:
    about = (
        "Pages that workers are known to have, by tier, all workers together (`radixgate_gateway_index_pages`; of the "
        "gateway that knows most). Beside it the different pages in the index of each gateway "
        "(`radixgate_gateway_index_size`), whose bound is `gateway.routing.max_index_pages`. Gateways that differ for "
        "long do not hear everything."
    )
    of_each = total(series("radixgate_gateway_index_pages", GATEWAYS), by=("namespace", "job", "instance", "tier"))
    in_index = f"sum by (process) ({named_process(series('radixgate_gateway_index_size', GATEWAYS))})"
    queries = [Query(f"max by (tier) ({of_each})", "{{tier}}"), Query(in_index, "index of {{process}}")]
    return graph("Pages known", about, queries, Look("short", TIERS, decimals=0))


def upkeep() -> timeseries.Panel:
    about = (
        "What does not go smoothly between caches and indexes, per second: events that a gateway has missed "
        "(`radixgate_gateway_cache_event_gaps_total`), snapshots that it was given "
        "(`radixgate_gateway_cache_snapshots_total`; one with each connection is normal), digests that differ although "
        "nothing was missed (`radixgate_gateway_cache_digests_total`; never normal), and pages for which the index had "
        "no room (`radixgate_gateway_index_forgotten_pages_total`)."
    )
    digests = rate("radixgate_gateway_cache_digests_total", GATEWAYS, 'outcome="differs"')
    queries = [
        Query(moving(rate("radixgate_gateway_cache_event_gaps_total", GATEWAYS)), "gaps"),
        Query(moving(rate("radixgate_gateway_cache_snapshots_total", GATEWAYS)), "snapshots"),
        Query(moving(digests), "digests that differ"),
        Query(moving(rate("radixgate_gateway_index_forgotten_pages_total", GATEWAYS)), "pages forgotten"),
    ]
    return graph("Upkeep of the index", about, queries, Look("ops", UPKEEP, no_value=NONE))


def events() -> timeseries.Panel:
    about = (
        "Changes of caches per second: told by workers to gateways and dropped because a gateway reads too slowly "
        "(`radixgate_cache_events_total`), snapshots that workers told (`radixgate_cache_snapshots_total`), and "
        "changes that gateways have taken over (`radixgate_gateway_cache_events_total`). Each gateway is told "
        "everything: told and taken over are alike."
    )
    told = "radixgate_cache_events_total"
    queries = [
        Query(moving(rate(told, WORKERS, 'outcome="sent"')), "told"),
        Query(moving(rate(told, WORKERS, 'outcome="dropped"')), "dropped"),
        Query(moving(rate("radixgate_gateway_cache_events_total", GATEWAYS)), "taken over"),
        Query(moving(rate("radixgate_cache_snapshots_total", WORKERS)), "snapshots"),
    ]
    return graph("Events of caches", about, queries, Look("ops", EVENTS))


def _evenness() -> str:
    """Return the most that a worker of a model computes, by the mean of all of that model."""
    info = f"max by (namespace, worker, model) ({WORKER_INFO})"
    computed = rate(_COMPUTED, WORKERS, by=("namespace", "worker"))
    each = f"({info} * on (namespace, worker) group_right (model) {computed})"
    by = "by (namespace, model)"
    return ratio(f"max {by} {each} * count {by} {each}", f"sum {by} {each}")


def unreached_now() -> stat.Panel:
    about = (
        "Workers in the registry that some gateway has never had a stream to (`radixgate_gateway_registered_workers` "
        "less those of `radixgate_gateway_worker_connected`), or whose entries it cannot read "
        "(`radixgate_gateway_ignored_registrations`). The table Gateways says which gateway. Where gateways have a "
        "list of workers there are none."
    )
    by = "by (namespace, job, instance)"
    registered = f"sum {by} ({series('radixgate_gateway_registered_workers', GATEWAYS)})"
    met = f"count {by} ({series('radixgate_gateway_worker_connected', GATEWAYS)})"
    ignored = f"max({series('radixgate_gateway_ignored_registrations', GATEWAYS)})"
    unmet = f"max(clamp_min({registered} - ({met} or 0 * {registered}), 0))"
    figure = Figure("short", 0, ((None, GOOD), (1, WARNING)), {"0": NONE})
    return number("Not reached", about, Query(f"{or_zero(unmet)} + {or_zero(ignored)}", "not reached"), figure)
