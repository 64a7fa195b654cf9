"""Shows a plan: tables for people, JSON for scripts, and the settings to write into a configuration file."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from cli.size.plan import Plan, Tier
from cli.size.speeds import Arrival
from cli.size.units import shown_bytes, shown_seconds

_DEFAULT_MAX_RUNNING = 32
_DEFAULT_STEP_TOKENS = 512


def as_json(plan: Plan, ways: Sequence[Arrival], model: str | None) -> str:
    """Return all figures, and the settings as a tree that a configuration file may hold."""
    values: dict[str, Any] = dataclasses.asdict(plan)
    del values["cache"]
    values["arrivals"] = [dataclasses.asdict(way) for way in ways]
    values["settings"] = settings(plan, model)
    return json.dumps(values, ensure_ascii=False)


def show(console: Console, plan: Plan, ways: Sequence[Arrival], model: str | None) -> None:
    for title, rows in (
        (_headline(plan), _model_rows(plan)),
        ("Memory", _memory_rows(plan)),
    ):
        console.print(Text(title, style="bold"))
        _print_rows(console, rows)
        console.print()
    _print_table(
        console,
        ("Tier", "size", "tokens", f"conversations of {plan.context_tokens:,}"),
        [_tier_cells(tier) for tier in plan.tiers],
    )
    for line in _running_lines(plan):
        console.print(line, soft_wrap=True)
    if plan.floors:
        cells = [(floor.tenant, f"{floor.device_slots:,}", f"{floor.host_slots:,}") for floor in plan.floors]
        console.print()
        _print_table(console, ("Floor of tenant", "device slots", "host slots"), cells)
    if ways:
        console.print()
        header = (f"A prefix of {plan.context_tokens:,} tokens", "takes", "tokens/s", "of computing it")
        _print_table(console, header, [_way_cells(way) for way in ways])
    console.print()
    console.print(Text("Settings", style="bold"))
    console.print("\n".join(toml_lines(settings(plan, model))), markup=False, soft_wrap=True)


def settings(plan: Plan, model: str | None) -> dict[str, Any]:
    """Return what to set, section by section; without what is the default anyway."""
    cache = plan.cache
    in_cache: dict[str, Any] = {"num_slots": cache.num_slots, "host_slots": cache.host_slots}
    if cache.page_size != 1:
        in_cache["page_size"] = cache.page_size
    if cache.storage.url is not None:
        storage = cache.storage
        in_cache["storage"] = {"url": storage.url, "max_bytes": storage.max_bytes, "page_size": storage.page_size}
    if cache.shares:
        in_cache["shares"] = {tenant: {"floor": share.floor} for tenant, share in cache.shares.items()}
    worker: dict[str, Any] = {"model": {"device": plan.device, "dtype": plan.number_format}, "cache": in_cache}
    if model is not None:
        worker["model"] = {"model": model, **worker["model"]}
    if plan.concurrent > _DEFAULT_MAX_RUNNING:
        worker["engine"] = {"max_running": plan.concurrent}
        if plan.concurrent > _DEFAULT_STEP_TOKENS:
            worker["engine"]["max_step_tokens"] = plan.concurrent
    return {"worker": worker}


def toml_lines(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Write a tree of settings as TOML."""
    values = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    if values:
        yield f"[{'.'.join(json.dumps(part) if not _is_bare(part) else part for part in path)}]"
    for name, value in values.items():
        yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from toml_lines(value, (*path, name))


def _is_bare(part: str) -> bool:
    return part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _headline(plan: Plan) -> str:
    where = "a GPU" if plan.device == "cuda" else "a CPU"
    return f"{plan.model} in {plan.number_format} on {where}"


def _model_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.num_parameters is None:
        yield "weights", "unknown: counted as nothing (give --parameters)"
    else:
        yield "weights", f"{shown_bytes(plan.weight_bytes)} ({plan.num_parameters:,} parameters)"
    yield "layers", str(plan.layers)
    yield "KV of a token", f"{plan.bytes_per_token:,} bytes"
    if plan.context_length is not None:
        yield "longest context", f"{plan.context_length:,} tokens"


def _memory_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.device_bytes_given is None:
        yield "device pool", "what a worker takes by itself where nothing is set (give --device-memory)"
    if plan.device == "cuda":
        yield (
            "of the GPU",
            f"{shown_bytes(plan.device_bytes_needed)} for weights and pool; the rest is for passes",
        )
        yield "main memory", f"{shown_bytes(plan.main_memory_bytes)} to request for the worker"
        yield "pinned of it", f"{shown_bytes(plan.pinned_bytes)}: the limit of locked memory (memlock), at least"
    else:
        yield "main memory", f"{shown_bytes(plan.main_memory_bytes)} to request for the worker"
    yield "overhead in it", f"{shown_bytes(plan.overhead_bytes)} assumed for the process (--overhead)"


def _running_lines(plan: Plan) -> Iterator[str]:
    running = f"{plan.concurrent:,} at a time need {plan.slots_for_concurrent:,} device slots"
    if plan.slots_beside_concurrent < 0:
        yield f"{running}, {-plan.slots_beside_concurrent:,} more than there are: some wait, or are paused."
    else:
        yield f"{running}; {plan.slots_beside_concurrent:,} are left for prefixes that nobody uses just then."
    if plan.context_length is not None and plan.context_tokens > plan.context_length:
        yield f"The model takes no more than {plan.context_length:,} tokens."


def _tier_cells(tier: Tier) -> tuple[str, ...]:
    if not tier.num_bytes:
        return tier.tier, "none", "", ""
    return tier.tier, shown_bytes(tier.num_bytes), f"{tier.tokens:,}", f"{tier.conversations:,}"


def _way_cells(way: Arrival) -> tuple[str, ...]:
    share = "" if way.of_prefill is None else f"{way.of_prefill:.2g}"
    return way.way, shown_seconds(way.seconds), f"{way.tokens_per_s:,.0f}", share


def _print_rows(console: Console, rows: Iterator[tuple[str, str]]) -> None:
    for name, value in rows:
        console.print(f"  {name:<16} {value}", markup=False, highlight=False, soft_wrap=True)


def _print_table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for number, row in enumerate((header, *rows)):
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        line = Text("   ".join([first, *others]).rstrip(), "" if number else "bold")
        console.print(line, soft_wrap=True)
