"""What does the cache save, where is it kept, and what does moving it cost?"""

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.colours import BAD, CALM, EXPECTATIONS, GOOD, OWNERS, STATES, TIERS, WARNING, Colours
from deploy.grafana.copies import (
    FAULT_COUNTERS,
    bytes_moved,
    copy_faults,
    durations,
    pages,
    prefetch_hits,
    speed,
    stored,
    tokens_moved,
)
from deploy.grafana.page import Page
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.queries import (
    GATEWAYS,
    GATEWAYS_WORK,
    WHOLE_RANGE,
    WORK,
    WORKERS,
    Query,
    hit_rate,
    hit_rate_by_tier,
    increase,
    named_adapter,
    or_zero,
    rate,
    ratio,
    series,
    total,
)
from deploy.grafana.shared import (
    TOKENS,
    TOKENS_PER_SECOND,
    first_token,
    hit_rate_now,
    saved_now,
    tokens_by_source,
)

_PREDICTED = "radixgate_gateway_predicted_cached_tokens_total"
_DELIVERED = "radixgate_gateway_delivered_cached_tokens_total"
_MISPREDICTED = "radixgate_gateway_mispredicted_tokens_total"


def cache() -> Dashboard:
    about = "What the cache saves, by tier, tenant and adapter; where KV is kept; what moving it costs."
    page = Page("radixgate-cache", "RadixGate / Cache", about, ["namespace", "worker", "tenant", "adapter"])
    page.add(hit_rate_now(WORK), saved_now(WORK), _computed_now(), _saved_in_range(), width=3, height=3)
    page.add(_device_now(), _dropped_now(), _faults_now(), _surprise_now(), width=3, height=3)
    page.row("Hit rate")
    page.add(_by_tier(), _by_tenant(), _by_adapter(), width=8, height=8)
    page.row("What is saved")
    page.add(tokens_by_source(WORK), _public(), first_token(GATEWAYS), width=8, height=8)
    page.row("Slots")
    page.add(_slots("device"), _slots("host"), _evictions(), width=8, height=8)
    page.row("Copies between tiers")
    page.add(tokens_moved(), bytes_moved(), speed(), width=8, height=7)
    page.add(durations(0.5), durations(0.99), copy_faults(), width=8, height=7)
    page.row("Storage")
    page.add(stored(), pages(), prefetch_hits(), width=8, height=7)
    page.row("What gateways expect of workers' caches")
    page.add(_expected(), _mispredicted(), width=12, height=7)
    return page.build()


def _computed_now() -> stat.Panel:
    about = (
        "Prompt tokens per second that workers had to compute (`radixgate_computed_prompt_tokens_total`). This is what "
        "prefill costs, whatever the hit rate says."
    )
    computed = rate("radixgate_computed_prompt_tokens_total", WORK)
    return number("Prefill computed", about, Query(f"{computed} > 0", "computed"), Figure(TOKENS_PER_SECOND, 1))


def _saved_in_range() -> stat.Panel:
    about = "Prompt tokens that the cache had, over all of the chosen time (`radixgate_cached_tokens_total`)."
    saved = increase("radixgate_cached_tokens_total", WORK, window=WHOLE_RANGE)
    return number("Saved in this time", about, Query(f"{saved} > 0", "saved"), Figure(TOKENS, 1))


def _device_now() -> stat.Panel:
    about = (
        "Share of device slots that running sequences use (`radixgate_slots`); the rest is free, or cached and "
        "reusable. Near 100 % sequences wait or are paused: more slots, fewer running sequences, or more workers."
    )
    used = total(series("radixgate_slots", WORKERS, 'tier="device"', 'state="in_use"'))
    figure = Figure("percentunit", 0, ((None, CALM), (0.9, WARNING)))
    return number(
        "Device in use",
        about,
        Query(ratio(used, total(series("radixgate_slots", WORKERS, 'tier="device"'))), "used"),
        figure,
    )


def _dropped_now() -> stat.Panel:
    about = (
        "Of the tokens evicted from the device, the share that had no copy on the host and is lost "
        "(`radixgate_dropped_mirror_tokens_total` over `radixgate_evicted_tokens_total`). Above 20 % mirroring cannot "
        "keep up: raise the watermarks, or make the host pool larger."
    )
    lost = or_zero(rate("radixgate_dropped_mirror_tokens_total", WORKERS))
    evicted = rate("radixgate_evicted_tokens_total", WORKERS, 'tier="device"')
    figure = Figure("percentunit", 1, ((None, GOOD), (0.05, WARNING), (0.2, BAD)), {"0": NONE})
    return number("Lost in eviction", about, Query(ratio(lost, evicted), "lost"), figure)


def _faults_now() -> stat.Panel:
    about = (
        "Copies and calls of the store per second that failed, stalled or came too late: the sum of what Copies that "
        "failed, below, shows by kind and metric (`radixgate_mirror_failures_total`, "
        "`radixgate_load_back_failures_total`, `radixgate_copy_stalls_total`, `radixgate_prefetch_failures_total`, "
        "`radixgate_late_prefetches_total`, `radixgate_save_failures_total`). None is normal."
    )
    faults = " + ".join(or_zero(rate(metric, WORKERS)) for metric in FAULT_COUNTERS.values())
    figure = Figure("ops", 2, ((None, GOOD), (0.001, WARNING), (1, BAD)), {"0": NONE})
    return number("Faults", about, Query(faults, "faults"), figure)


def _surprise_now() -> stat.Panel:
    about = (
        "Prompt tokens about which gateways expected the wrong thing of a worker's cache "
        "(`radixgate_gateway_mispredicted_tokens_total` over `radixgate_gateway_prompt_tokens_total`). Gateways follow "
        "what caches hold, so this is near nothing; evictions while requests wait are the usual cause. Fleet says more."
    )
    wrong = ratio(rate(_MISPREDICTED, GATEWAYS), rate("radixgate_gateway_prompt_tokens_total", GATEWAYS))
    figure = Figure("percentunit", 1, ((None, GOOD), (0.02, WARNING), (0.2, BAD)))
    return number("Mispredicted", about, Query(wrong, "mispredicted"), figure)


def _by_tier() -> timeseries.Panel:
    about = (
        "Share of prompt tokens found, by the tier that had them (`radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`); the top of the area is the hit rate. A tier that shows nothing is not worth "
        "its memory, or the one above is large enough."
    )
    look = Look("percentunit", TIERS, stacked=True, top=1, decimals=0)
    return graph("Hit rate by tier", about, [Query(hit_rate_by_tier(), "{{tier}}")], look)


def _by_tenant() -> timeseries.Panel:
    about = (
        "Share of prompt tokens found, by tenant: `radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`. Tenants never share what is theirs, so a new one begins at nothing. The "
        "busiest 50 have lines, the rest is `other`."
    )
    look = Look("percentunit", top=1, decimals=0, many=True)
    return graph("Hit rate by tenant", about, [Query(hit_rate(by=("tenant",)), "{{tenant}}")], look)


def _by_adapter() -> timeseries.Panel:
    about = (
        "Share of prompt tokens found, by adapter (`radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`). KV of one adapter is of no use to another; a new revision begins at "
        "nothing."
    )
    look = Look("percentunit", top=1, decimals=0, many=True)
    return graph("Hit rate by adapter", about, [Query(named_adapter(hit_rate(by=("adapter",))), "{{adapter}}")], look)


def _public() -> timeseries.Panel:
    about = (
        "Cached tokens per second that belong to a public prefix, which all tenants share, and those of tenants' own "
        "(`radixgate_gateway_cached_public_tokens_total`, `radixgate_gateway_cached_tokens_total`). Many tenants with "
        "one beginning and nothing public here: register it with `radixgate prefix create`."
    )
    public = rate("radixgate_gateway_cached_public_tokens_total", GATEWAYS_WORK)
    cached = rate("radixgate_gateway_cached_tokens_total", GATEWAYS_WORK)
    queries = [Query(f"{cached} - {or_zero(public)} > 0", "own"), Query(f"{public} > 0", "public")]
    return graph("Cached tokens, public and own", about, queries, Look(TOKENS_PER_SECOND, OWNERS, stacked=True))


_ABOUT_SLOTS = {
    "device": (
        "Slots of the device pools by state (`radixgate_slots`). Evictable ones are the cache. The dashed line says "
        "how many of them have a copy on the host and cost nothing to reuse (`radixgate_settled_slots`). Little "
        "that is evictable means that running sequences push the cache out."
    ),
    "host": (
        "Slots of the host pools by state (`radixgate_slots`). In use are those that copies read or write now. A full "
        "pool is normal: the coldest makes room. Nothing at all means that there is no host tier."
    ),
}


def _slots(tier: str) -> timeseries.Panel:
    about = _ABOUT_SLOTS[tier]
    queries = [
        Query(total(series("radixgate_slots", WORKERS, f'tier="{tier}"', f'state="{state}"')), state.replace("_", " "))
        for state in ("in_use", "evictable", "free")
    ]
    if tier == "device":
        queries.append(Query(total(series("radixgate_settled_slots", WORKERS)), "settled"))
    look = Look("short", STATES, stacked=True, dashed={"settled": TIERS["host"]} if tier == "device" else {})
    return graph(f"{tier.capitalize()} slots", about, queries, look)


def _evictions() -> timeseries.Panel:
    about = (
        "Tokens that leave the device and the host per second (`radixgate_evicted_tokens_total`), and those that left "
        "the device without a copy (`radixgate_dropped_mirror_tokens_total`). Eviction is normal once pools are full; "
        "what is lost has to be computed again."
    )
    queries = [
        Query(f"{rate('radixgate_evicted_tokens_total', WORKERS, by=('tier',))} > 0", "{{tier}}"),
        Query(f"{rate('radixgate_dropped_mirror_tokens_total', WORKERS)} > 0", "lost"),
    ]
    return graph("Evictions", about, queries, Look(TOKENS_PER_SECOND, {**TIERS, "lost": BAD}))


def _expected() -> timeseries.Panel:
    about = (
        f"Tokens that gateways expected workers to have cached, and those that they had (`{_PREDICTED}`, "
        f"`{_DELIVERED}`). Expected are whole pages, so what is found lies somewhat above. Found below expected "
        "means that workers evict what gateways count on; far above, that gateways do not hear what workers have: see "
        "Fleet."
    )
    metrics = {"expected": _PREDICTED, "found": _DELIVERED}
    queries = [Query(f"{rate(metric, GATEWAYS)} > 0", name) for name, metric in metrics.items()]
    return graph("Expected and found", about, queries, Look(TOKENS_PER_SECOND, _only(EXPECTATIONS, *metrics)))


def _mispredicted() -> timeseries.Panel:
    about = (
        f"How far gateways are off, as a share of prompt tokens (`{_MISPREDICTED}` over "
        "`radixgate_gateway_prompt_tokens_total`). Too much: the worker had evicted it. Too little: it came "
        "there meanwhile, or the gateway has not been told."
    )
    prompt = rate("radixgate_gateway_prompt_tokens_total", GATEWAYS)
    queries = [
        Query(ratio(rate(_MISPREDICTED, GATEWAYS, f'direction="{direction}"'), prompt), f"too {much}")
        for direction, much in (("over", "much"), ("under", "little"))
    ]
    look = Look("percentunit", _only(EXPECTATIONS, "too much", "too little"), smallest_top=0.1)
    return graph("Mispredicted", about, queries, look)


def _only(colours: Colours, *names: str) -> Colours:
    return {name: colours[name] for name in names}
