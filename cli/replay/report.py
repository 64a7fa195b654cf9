"""What a replay is told in: a table for the terminal, a JSON object for scripts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cli.replay.simulator import Replay

_SUFFIXES = {"G": 2**30, "M": 2**20, "K": 2**10}


def slots_text(num_slots: int | None) -> str:
    """Return a number of slots as it would be typed: 4M, 1000, unlimited."""
    if num_slots is None:
        return "unlimited"
    for suffix, factor in _SUFFIXES.items():
        if num_slots and not num_slots % factor:
            return f"{num_slots // factor}{suffix}"
    return str(num_slots)


def slots_from(text: str) -> int:
    """Return the number that `text` stands for: 4M is 4 * 2**20. Raises ValueError if it is none."""
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    try:
        number = int(text[:-1] if factor > 1 else text)
    except ValueError:
        raise ValueError("must be a whole number, as in 65536 or 64K") from None
    if number < 0:
        raise ValueError(f"{text} is negative")
    return number * factor


def label(run: Replay, runs: Sequence[Replay]) -> str:
    """Return what tells a run from the others: its policy, and whatever else is not the same in all of them."""
    parts = [run.cache.policy]
    if len({each.cache.device_slots for each in runs}) > 1:
        parts.append(slots_text(run.cache.device_slots))
    if len({each.cache.host_slots for each in runs}) > 1:
        parts.append(f"+ {slots_text(run.cache.host_slots)} host")
    if len({each.cache.page_size for each in runs}) > 1:
        parts.append(f"page {run.cache.page_size}")
    return ", ".join(parts)


def as_json(trace: Path, runs: Sequence[Replay]) -> dict[str, Any]:
    """Return every run under "runs"; if there is only one, its fields stand at the top as well."""
    rows = [_fields(run) for run in runs]
    return {"trace": trace.name, **(rows[0] if len(rows) == 1 else {}), "runs": rows}


def _fields(run: Replay) -> dict[str, Any]:
    return {
        "policy": run.cache.policy,
        "page_size": run.cache.page_size,
        "device_slots": run.cache.device_slots,
        "host_slots": run.cache.host_slots,
        "hit_rate": run.hit_rate,
        "device": run.device,
        "host": run.host,
        "requests": len(run.prompt_tokens),
        "prompt_tokens": int(run.prompt_tokens.sum()),
        "hit_tokens": int(run.device_hits.sum() + run.host_hits.sum()),
        "cached_tokens": run.cached_tokens,
        "evicted_tokens": run.evicted_tokens,
        "seconds": round(run.seconds, 3),
    }


def show(console: Console, trace: Path, runs: Sequence[Replay]) -> None:
    """Print a row for each run. What is the same in all runs stands above them, where it is no figure."""
    first = runs[0]
    paged = len({run.cache.page_size for run in runs}) > 1
    hosted = any(run.cache.host_slots for run in runs)
    title = f"{trace.name}: {len(first.prompt_tokens):,} requests, {int(first.prompt_tokens.sum()):,} prompt tokens"
    table = Table(
        title=title if paged else f"{title}, page size {first.cache.page_size}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("policy")
    for column in _cells(first, paged, hosted):
        table.add_column(column, justify="right")
    for run in runs:
        table.add_row(run.cache.policy, *_cells(run, paged, hosted).values())
    console.print(table)


def _cells(run: Replay, paged: bool, hosted: bool) -> dict[str, str]:
    """The figures of a run by column."""
    size = run.cache
    cells = {"page": str(size.page_size)} if paged else {}
    cells["slots"] = slots_text(size.device_slots)
    cells |= {"host slots": slots_text(size.host_slots)} if hosted else {}
    cells["hit rate"] = f"{run.hit_rate:.2%}"
    cells |= {"device": f"{run.device:.2%}", "host": f"{run.host:.2%}"} if hosted else {}
    return cells | {"evicted": f"{run.evicted_tokens:,}"}
