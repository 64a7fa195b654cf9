"""Composes what is shown from a view, what somebody chose, and the size there is. Lines of text: nothing is printed."""

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from cli.top import columns
from cli.top.blocks import summary, worker_blocks
from cli.top.glyphs import SLOT_PARTS, hit_legend, legend
from cli.top.grid import Column, beside, cut, table
from cli.top.keys import HELP, VIEWS, Controls
from cli.top.rows import View

_MOST_TROUBLES = 5
_WIDE = 150  # from here on tenants and adapters stand side by side
_MOST_WORKERS = 0.4  # of the lines, in the view of everything
_TABLES: dict[str, Sequence[Column[Any]]] = {
    "workers": columns.WORKERS,
    "gateways": columns.GATEWAYS,
    "tenants": columns.TENANTS,
    "adapters": columns.ADAPTERS,
}


def screen(view: View, controls: Controls, width: int, height: int | None) -> list[Text]:
    """Return the lines of the whole screen: at most `height` of them, all of them where that is None."""
    if controls.help:
        return _fill(_help(), width, height, _footer(controls, width))
    head = [_title(view, controls, width), *summary(view, width)]
    if view.error:
        head.append(Text(f"Nothing new: {view.source}: {view.error}", "bold red"))
    down = [*view.silent, *((row.gateway, row.error) for row in view.gateways if not row.up)]
    head.extend(Text(f"{endpoint}: {error}", "red") for endpoint, error in down[:_MOST_TROUBLES])
    room = None if height is None else max(3, height - len(head) - 1)
    body = _all(view, controls, width, room) if controls.view == "all" else _one(view, controls, width, room)
    return _fill([*head, *body], width, height, _footer(controls, width))


def _fill(lines: list[Text], width: int, height: int | None, footer: Text | None) -> list[Text]:
    """Return `lines` cut to the screen, with the footer as the last one."""
    lines = [cut(line, width) for line in lines]
    if height is None:
        return lines
    kept = lines[: height - 1]
    return [*kept, *[Text()] * (height - 1 - len(kept)), footer or Text()]


def _title(view: View, controls: Controls, width: int) -> Text:
    up = sum(row.up for row in view.workers), sum(row.up for row in view.gateways)
    left = Text.assemble(
        ("RadixGate", "bold"),
        f"  {up[0]}/{len(view.workers)} workers, {up[1]}/{len(view.gateways)} gateways up",
    )
    clock = time.strftime("%H:%M:%S", time.localtime(view.at))
    held = "  HELD" if controls.held else ""
    right = Text(f"last {view.window_s:g} s of {view.source}  {clock}{held}", "bright_black")
    left.append(" " * max(2, width - left.cell_len - right.cell_len))
    return left.append_text(right)


def _footer(controls: Controls, width: int) -> Text:
    text = Text()
    for number, name in enumerate(VIEWS, start=1):
        text.append(f"{number} {name}", "reverse" if name == controls.view else "").append(" ")
    order = "↑" if controls.reverse else "↓"
    text.append(f" s {controls.sort_header}{order}  +- {controls.interval_s:g}s  ? help  q quit")
    return cut(text, width)


def _help() -> list[Text]:
    lines = [Text("radixgate top", "bold"), Text()]
    lines.extend(Text.assemble((f"  {key:<16}", "bold"), meaning) for key, meaning in HELP)
    lines.extend((Text(), Text("  hits   ").append_text(hit_legend())))
    lines.extend((Text("  slots  ").append_text(legend(SLOT_PARTS)), Text()))
    sentences = (
        "Rates are per second, over the window in the title; IN counts prompt tokens, cached ones included,",
        "OUT tokens generated. HIT is the cached share of prompt tokens. Without traffic there is none.",
        "TTFT50 and TTFT95 are the median and the 95th percentile of the time to the first token.",
        "LIMIT/s counts requests that a limit refused, FAIL/s those that ended by a fault of the service.",
    )
    return [*lines, *(Text(f"  {sentence}") for sentence in sentences)]


def _sorted(rows: Sequence[Any], kind: str, controls: Controls) -> list[Any]:
    """Return rows in the order chosen: numbers the largest first, names by the alphabet, or the other way round."""
    if controls.sorted_table != kind:
        return list(rows)
    sorts = columns.SORTS[kind]
    _, key = sorts[controls.sort % len(sorts)]
    by_number = bool(rows) and not isinstance(key(rows[0]), str)
    return sorted(rows, key=key, reverse=by_number != controls.reverse)


def _section(kind: str, rows: Sequence[Any], controls: Controls, width: int, room: int | None) -> list[Text]:
    """Return a table with as many rows as there is room for, and how many there are besides."""
    ordered = _sorted(rows, kind, controls)
    offset = min(controls.offset, max(0, len(ordered) - 1)) if controls.sorted_table == kind else 0
    shown = ordered[offset:]
    cut_off = room is not None and len(shown) > room - 1
    if room is not None and cut_off:
        shown = shown[: max(1, room - 2)]
    sorted_by = controls.sort_header if controls.sorted_table == kind else ""
    lines = table(_TABLES[kind], shown, width, sorted_by=sorted_by)
    if not ordered:
        lines.append(Text(f"no {kind} in sight" if kind in {"workers", "gateways"} else "no traffic", "bright_black"))
    hidden = len(ordered) - len(shown)
    if hidden:
        lines.append(Text(f"{hidden} more of {len(ordered)} {kind}", "bright_black"))
    return lines if room is None else lines[:room]


def _all(view: View, controls: Controls, width: int, room: int | None) -> list[Text]:
    gateways = _section("gateways", view.gateways, controls, width, None if room is None else max(3, room // 5))
    most = None if room is None else max(3, int(room * _MOST_WORKERS))
    workers = _section("workers", view.workers, controls, width, most)
    lines = [Text(), *workers, Text(), *gateways, Text()]
    left = None if room is None else max(2, room - len(lines))
    if width >= _WIDE and view.adapters:
        half = (width - 3) // 2
        tenants = _section("tenants", view.tenants, controls, half, left)
        return [*lines, *beside(tenants, _section("adapters", view.adapters, controls, half, left), half)]
    return [*lines, *_section("tenants", view.tenants, controls, width, left)]


def _one(view: View, controls: Controls, width: int, room: int | None) -> list[Text]:
    rows: dict[str, Sequence[Any]] = {
        "workers": view.workers,
        "gateways": view.gateways,
        "tenants": view.tenants,
        "adapters": view.adapters,
    }
    kind = controls.view
    if kind == "workers":
        ordered = _sorted(view.workers, kind, controls)
        return [Text(), *worker_blocks(ordered[min(controls.offset, max(0, len(ordered) - 1)) :], width)]
    inside = None if room is None else room - 1
    return [Text(), *_section(kind, rows[kind], controls, width, inside)]
