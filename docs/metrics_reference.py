"""Writes docs/metrics.md from the catalogue of metrics, which is made by the code that shows them.

    python -m docs.metrics_reference [FILE]

A test compares the page with what this would write.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.metrics_notes import NOTES, PARTS
from metrics.bounds import Bounds
from metrics.catalogue import Described, catalogue

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

<!-- Written by `make docs` from the code of the metrics; a test says when it is out of date. Change that instead. -->

Every worker and every gateway serves its metrics over plain HTTP in Prometheus' text format: a worker on
`worker.metrics_listen` (port 9101), a gateway on `gateway.metrics_listen` (port 9464). Rules and dashboards that use
them are in [monitoring](monitoring.md) and [dashboards](dashboards.md).

Beside them, on the same port:

- `/livez`: 200, or 503 and why. Its event loop does not answer within two seconds; of a worker also: its engine's
  thread has ended, or nothing has moved for longer than `worker.stall_limit_s` while there is work.
- `/readyz`: 200, or 503 and why: it starts or drains; of a gateway also: no worker is connected.

Other paths are 404, other methods than GET and HEAD 405. Of more than 256 connections at a time the oldest is closed. A
worker opens the port when its model is loaded. Who scrapes needs no credential: bind it to an
address that only Prometheus and probes reach.

- Counters end in `_total` and only grow; a restart sets them to 0, which `rate` sees.
- A histogram `X` is three series: `X_bucket` with the label `le`, `X_sum` and `X_count`.
- Workers count tokens under `radixgate_`, gateways under `radixgate_gateway_`: sums of one name over all processes
  count nothing twice.
- All metrics of a worker bear its `worker_id` as the label `worker`; those of a gateway name workers by address.
- A family whose labels have no values yet shows no sample until something happens.

```promql
sum(rate(radixgate_cached_tokens_total[5m])) / sum(rate(radixgate_prompt_tokens_total[5m]))
```

is the share of prompt tokens that the cache saved, over all workers; add `by (tenant)` on both sides, or
`by (tier)` above, to split it. Never take an average of ratios.
"""

ABOUT_BOUNDS = """\
## How many series there are

The busiest {tenants} tenants of a process have series of their own, the rest share the label `other`; so do the busiest
{adapters} adapters. Work fades with a half-life of ten minutes, and a tenant takes over a label when it is twice as
busy as the one that has it. Who loses its label counts under `other` from then on, and its series stay for two minutes
more without growing: scrape at least that often, and rates summed over tenants miss nothing of it.

A rate is made of differences, and what a series says when Prometheus first sees it is in none. So Prometheus (whoever
sends `X-Prometheus-Scrape-Timeout-Seconds`) is shown each new counter and histogram at 0 first, and as it is with the
next scrape: a tenant's first request counts. Whoever else looks sees everything as it is. A second server that begins
to scrape later finds what there is by then as it is, and so does the ninth at a time: a process remembers eight, by
address.

So a process shows at most this many samples, whatever its traffic. Most show a few hundred.

| process | with | samples at most |
|---|---|---|
{rows}
"""

ABOUT_USAGE = """\
## Usage log

Metrics are not for bills: labels are bounded, and rates are estimates. `gateway.usage_log` names a file (`-`: standard
output) to which a gateway appends one JSON line for each request that used something, whatever end it came to:

```json
{"time":"2026-11-30T12:00:00.123Z","day":"20261130","request_id":"r-1","tenant":"acme","call":"Generate",
 "model":"smollm2-135m-instruct","adapter":"","prompt_tokens":512,"cached_device_tokens":480,"cached_host_tokens":0,
 "cached_storage_tokens":0,"computed_prompt_tokens":32,"public_prefix_tokens":0,"cached_public_tokens":0,
 "completion_tokens":64,"counted_tokens":0,"seconds":0.8123,"end":"finished"}
```

(one line in the file). `day` is the day of UTC on which the request is accounted; the lines of `Generate` calls of a
tenant and a day add up to what `radixgate usage TENANT` says. `call` is `CountTokens` for prompts that were only
counted, with their length in `counted_tokens`. `seconds` runs from the call's arrival to its end. `end` is `finished`,
`cancelled` (the client went away), `deadline_exceeded`, or [the reason](api.md#errors) of the error in lower case. No
line holds a prompt, a text or token ids.

- Lines are written beside the event loop, whole, in the order in which requests end. At a stop the gateway takes up to
  five seconds to write the rest.
- To rotate the file rename it: the next line goes to a new one. SIGHUP makes the gateway open the file anew as well.
- Where the disk is full, requests go on and lines wait, up to 10,000 of them
  (`radixgate_gateway_usage_log_waiting_lines`); further ones are lost, and counted
  (`radixgate_gateway_usage_log_lost_lines_total`). A line that the disk has cut off in the middle is written again,
  whole, on the next line: skip what is no JSON.
- Lines that were handed to the system survive the gateway's death, not the machine's: there is no `fsync`. Usage in
  Redis is the other account; see [tenants](tenants.md).

## Logs

Logs are JSON lines on standard error (`log.format`). Those about a request carry its `request_id`, in the gateway and
in the worker: the client's own, or one that the gateway made and that errors and HTTP headers name. Prompts, texts,
token ids and credentials never get into a log.
"""


def reference() -> str:
    """Return the page."""
    families: dict[tuple[str, str], Described] = {(each.process, each.name): each for each in catalogue()}
    parts = [INTRODUCTION]
    for process, groups in PARTS.items():
        parts.append(f"## {process.capitalize()}s\n")
        for title, names in groups.items():
            described = [families.pop((process, name)) for name in names]
            parts.append(f"### {title}\n\n{_table(described)}")
    left = {family.name: family for family in families.values()}
    shared = [family for name, family in left.items() if name.startswith("process_")]
    if len(shared) < len(left):
        raise ValueError(f"in no part of the page: {sorted(set(left) - {family.name for family in shared})}")
    parts.append(f"## Of both processes\n\n{_table(shared)}")
    parts += [_about_bounds(), ABOUT_USAGE]
    return "\n".join(parts)


def _table(families: Sequence[Described]) -> str:
    with_when = any(family.when != "always" for family in families)
    lines = [
        "| metric | kind | labels | unit | |" + (" there |" if with_when else ""),
        "|---|---|---|---|---|" + ("---|" if with_when else ""),
    ]
    lines += [f"| {' | '.join(_row(family, with_when))} |" for family in families]
    return "\n".join(lines) + "\n" + "".join(_buckets(families))


def _row(family: Described, with_when: bool) -> Iterator[str]:
    yield f"`{family.name}`"
    yield family.kind
    yield ", ".join(f"`{label}`" for label in family.labels)
    yield family.unit
    note = NOTES.get(family.name)
    yield family.help + (f". {note}" if note else "")
    if with_when:
        yield family.when


def _buckets(families: Sequence[Described]) -> Iterator[str]:
    by_bounds: dict[tuple[float, ...], list[str]] = {}
    for family in families:
        if family.buckets:
            by_bounds.setdefault(family.buckets, []).append(family.name)
    for bounds, names in by_bounds.items():
        whose, which = ", ".join(f"`{name}`" for name in names), ", ".join(f"{bound:g}" for bound in bounds)
        yield f"\nBuckets of {whose}: {which}.\n"


def _about_bounds() -> str:
    bounds, rows = Bounds(), []
    for process, assumed in (
        ("worker", bounds),
        ("gateway", Bounds(workers=1, models=1)),
        ("gateway", bounds),
        ("gateway", Bounds(workers=64, models=16)),
    ):
        most = assumed.most_samples(family for family in catalogue() if family.process == process)
        what = "" if process == "worker" else f"{assumed.workers} workers, {assumed.models} models"
        rows.append(f"| {process} | {what.replace('1 workers, 1 models', '1 worker, 1 model')} | {most:,} |")
    return ABOUT_BOUNDS.format(tenants=bounds.tenants, adapters=bounds.adapters, rows="\n".join(rows))


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(reference(), "utf-8")


if __name__ == "__main__":
    main()
