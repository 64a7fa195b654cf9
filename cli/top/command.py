"""The command itself: whom to ask, and how to show what they say."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cli.parameters import DURATION
from cli.ready_file import read_ready_file, writer_is_gone
from cli.top.fleet import Fleet
from cli.top.keys import Controls
from cli.top.prometheus import Prometheus
from cli.top.rows import View
from cli.top.screen import screen
from cli.top.sources import Endpoints, Source, is_http, metrics_urls
from cli.top.watch import watch

DEFAULT_URLS = ("http://127.0.0.1:9464/metrics", "http://127.0.0.1:9101/metrics")
_LEAST_S = 0.1
_WIDTH = 120  # of a snapshot that goes to no terminal


def _urls(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Return URLs; HOST:PORT is enough for one."""
    whole = tuple(value if "://" in value else f"http://{value}/metrics" for value in values)
    for url in whole:
        if not is_http(url):
            raise click.BadParameter(f"{url!r} is no URL of HTTP")
    return whole


def _url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_http(value):
        raise click.BadParameter(f"{value!r} is no URL of HTTP")
    return value


@click.command("top")
@click.option(
    "--metrics",
    "urls",
    multiple=True,
    callback=_urls,
    metavar="URL",
    help="A metrics endpoint, as URL or HOST:PORT. May be repeated.  [default: this machine's default addresses]",
)
@click.option(
    "--ready-file",
    "ready_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take the endpoints from the ready file of serve, gateway or worker. May be repeated.",
)
@click.option(
    "--prometheus",
    callback=_url,
    envvar="RADIXGATE_PROMETHEUS",
    metavar="URL",
    help="Ask this Prometheus for all endpoints that it scrapes.  [env: RADIXGATE_PROMETHEUS]",
)
@click.option(
    "--match", default="", metavar="MATCHERS", help="With --prometheus: only such, as in 'namespace=\"prod\"'."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --prometheus: send the bearer token in this file.",
)
@click.option("--interval", type=DURATION, help="Between two looks.  [default: 2s; 5s with --prometheus]")
@click.option("--window", type=DURATION, default="60s", show_default=True, help="What rates are of.")
@click.option("--timeout", type=DURATION, default="3s", show_default=True, help="For each answer.")
@click.option("--once", is_flag=True, help="Print one snapshot, of two looks with the interval between, and end.")
@click.option("--json", "json_wanted", is_flag=True, help="The same as JSON, for scripts.")
def command(
    interval: timedelta | None, window: timedelta, timeout: timedelta, once: bool, json_wanted: bool, **chosen: Any
) -> None:
    """Watch workers, gateways, tenants and adapters, from their metrics. `?` lists the keys, q ends it.

    Without a terminal, one snapshot is printed.
    """
    default_s = 2.0 if chosen["prometheus"] is None else 5.0
    interval_s = default_s if interval is None else interval.total_seconds()
    window_s, timeout_s = window.total_seconds(), timeout.total_seconds()
    for name, seconds in (("--interval", interval_s), ("--window", window_s), ("--timeout", timeout_s)):
        if seconds < _LEAST_S:
            raise click.UsageError(f"{name} must be at least {_LEAST_S:g} s")
    source = _source(timeout_s=timeout_s, **chosen)
    console = Console(highlight=False, markup=False)
    if once or json_wanted or not console.is_terminal:
        _snapshot(source, console, window_s, interval_s, json_wanted)
        return
    with contextlib.suppress(KeyboardInterrupt):
        watch(source, console, window_s=window_s, interval_s=interval_s)


def _source(
    *,
    urls: tuple[str, ...],
    ready_files: tuple[Path, ...],
    prometheus: str | None,
    match: str,
    token_file: Path | None,
    timeout_s: float,
) -> Source:
    if prometheus is None:
        if match or token_file:
            raise click.UsageError("--match and --token-file belong to --prometheus")
        return Endpoints(_endpoints(urls, ready_files), timeout_s=timeout_s)
    if urls or ready_files:
        raise click.UsageError("--prometheus knows the endpoints: leave out --metrics and --ready-file")
    token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    return Prometheus(prometheus, timeout_s=timeout_s, match=match, token=token)


def _endpoints(urls: Sequence[str], ready_files: Sequence[Path]) -> Sequence[str]:
    found = list(urls)
    for path in ready_files:
        try:
            content = read_ready_file(path) or {}
            named = metrics_urls(content)
        except (ValueError, OSError) as error:
            raise click.ClickException(f"{path} cannot be read as a ready file: {error}") from error
        if writer_is_gone(content):
            raise click.ClickException(f"{path} was left by a process that was killed (pid {content['pid']})")
        if not named:
            raise click.ClickException(f"{path} names no metrics endpoint")
        found += named
    return found or DEFAULT_URLS


def _snapshot(source: Source, console: Console, window_s: float, interval_s: float, json_wanted: bool) -> None:
    """Print what two looks show. Fails where nobody answered: a script may want to know."""
    begun = source.begin(window_s)
    # What the source knows no past of can be seen for as long as we wait.
    fleet = Fleet(source.title, window_s if len(begun) > 1 else interval_s)
    for poll in begun:
        fleet.take(poll)
    if len(begun) < 2:
        time.sleep(interval_s)
        fleet.take(source.poll())
    source.close()
    view = fleet.view()
    if json_wanted:
        click.echo(json.dumps(as_values(view), ensure_ascii=False))
    else:
        width = console.width if console.is_terminal else _WIDTH
        for line in screen(view, Controls(interval_s=interval_s), width, None):
            line.rstrip()
            console.print(line, soft_wrap=True)
    if not (any(row.up for row in view.workers) or any(row.up for row in view.gateways)):
        raise click.ClickException(view.error or "no worker and no gateway answers")


def as_values(view: View) -> dict[str, object]:
    """Return a view as JSON has it; the history of a snapshot says nothing."""
    values = dataclasses.asdict(view)
    del values["history"]
    hits = {
        "workers": [row.hits for row in view.workers],
        "tenants": [row.hits for row in view.tenants],
        "adapters": [row.hits for row in view.adapters],
    }
    for name, found in hits.items():
        for value, each in zip(values[name], found, strict=True):
            value["hit_rate"] = None if each is None else each.rate
    values["totals"]["hit_rate"] = None if view.totals.hits is None else view.totals.hits.rate
    values["silent"] = dict(view.silent)
    return values
