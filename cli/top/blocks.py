"""Blocks that are no tables: the summary at the top, and a worker in all detail."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from cli.top.glyphs import (
    NO_TRAFFIC,
    NOTHING,
    SLOT_PARTS,
    hit_bar,
    hit_legend,
    legend,
    percent,
    seconds,
    short,
    slot_bar,
    sparkline,
)
from cli.top.rows import TIERS, Hits, SlotUse, View, WorkerRow

_LABEL = 9
_FIGURE = 12
_MOST_BAR = 60
_LEAST_HISTORY = 2
_HIT_BAR = 28
_WITH_LEGEND = 150  # wide enough to say what the glyphs mean


def summary(view: View, width: int) -> list[Text]:
    """Return three lines of figures with their history, and what the bars mean."""
    totals = view.totals
    hit = NO_TRAFFIC if totals.hits is None else percent(totals.hits.rate)
    tokens = f"{short(totals.prompt_rate)}/s"
    generated = f"{short(totals.output_rate)}/s"
    history = view.history
    graphs = (
        ("hit rate", hit, [each.hit_rate for each in history], 1.0, "green"),
        ("in", tokens, [each.prompt_rate for each in history], None, "cyan"),
        ("out", generated, [each.output_rate for each in history], None, "magenta"),
    )
    notes = _notes(view, width)
    graph_width = max(10, min(_MOST_BAR, width - _LABEL - _FIGURE - 30))
    lines = []
    for (name, figure, values, top, style), note in zip(graphs, notes, strict=True):
        line = Text.assemble((f"{name:<{_LABEL}}", "bright_black"), (f"{figure:<{_FIGURE}}", "bold"))
        if len(history) >= _LEAST_HISTORY:
            graph = sparkline(values, graph_width, top=top)
            graph.stylize(style)
            line.append_text(graph).append("  ")
        line.append_text(note)
        lines.append(line)
    return lines


def _notes(view: View, width: int) -> tuple[Text, Text, Text]:
    totals = view.totals
    ttft = NOTHING if totals.ttft is None else f"{seconds(totals.ttft.p50)} / {seconds(totals.ttft.p95)}"
    running = f"{short(totals.running)} run, {short(totals.waiting)} wait"
    if totals.resident_adapters is not None:
        running += f", {short(totals.resident_adapters)} LoRA"
    hits = hit_bar(totals.hits, _HIT_BAR)
    if width >= _WITH_LEGEND:
        hits.append("  ").append_text(hit_legend())
    return hits, Text(f"TTFT p50/p95 {ttft}"), Text(running)


def worker_blocks(rows: Sequence[WorkerRow], width: int) -> list[Text]:
    """Return every worker in detail, and what the glyphs mean."""
    lines = [Text("hits  ").append_text(hit_legend()), Text("slots ").append_text(legend(SLOT_PARTS))]
    for row in rows:
        lines.append(Text())
        lines.extend(_worker(row, width))
    if not rows:
        lines.append(Text("no workers in sight", "bright_black"))
    return lines


def _worker(row: WorkerRow, width: int) -> Iterator[Text]:
    facts = [each for each in (row.endpoint, row.model, row.device_name, row.version and f"v{row.version}") if each]
    state = ("● up", "green") if row.up else (f"○ down: {row.error}", "bold red")
    yield Text.assemble((row.worker, "bold"), "  ", state, "  ", ("  ".join(facts), "bright_black"))
    if not row.up:
        return
    ttft = NOTHING if row.ttft is None else f"{seconds(row.ttft.p50)} / {seconds(row.ttft.p95)}"
    yield _line(
        f"running {short(row.running)}", f"waiting {short(row.waiting)}", f"in {short(row.prompt_rate)}/s",
        f"out {short(row.output_rate)}/s", f"step {seconds(row.step_s)}", f"TTFT p50/p95 {ttft}",
    )  # fmt: skip
    bar_width = max(10, min(_MOST_BAR, width - 55))
    yield Text("  hits    ").append_text(hit_bar(row.hits, bar_width)).append(f"  {_hit_figures(row.hits)}")
    yield Text("  device  ").append_text(slot_bar(row.device, bar_width)).append(f"  {_slot_figures(row.device)}")
    if row.host is not None:
        yield Text("  host    ").append_text(slot_bar(row.host, bar_width)).append(f"  {_slot_figures(row.host)}")
        yield _line(
            f"mirrored {short(row.mirror_rate, 'B')}/s", f"loaded back {short(row.load_back_rate, 'B')}/s",
            f"prefetched {short(row.prefetch_rate, 'B')}/s", f"settled {short(row.settled)}",
            f"stored {short(row.stored_bytes, 'B')}",
        )  # fmt: skip
    yield _line(
        f"evicted {short(row.evicted_rate)} tok/s", f"lost {short(row.lost_rate)} tok/s",
        f"pauses {short(row.pause_rate)}/s", f"stalled {seconds(row.stalled_s)}", f"LoRA {short(row.adapters)}",
    )  # fmt: skip


def _line(*figures: str) -> Text:
    return Text("  " + "   ".join(figures))


def _hit_figures(hits: Hits | None) -> str:
    if hits is None:
        return ""
    parts = [f"{tier} {percent(getattr(hits, tier) / hits.prompt)}" for tier in TIERS if getattr(hits, tier)]
    return ", ".join([percent(hits.rate), *parts])


def _slot_figures(slots: SlotUse | None) -> str:
    if slots is None:
        return ""
    return f"{short(slots.in_use)} + {short(slots.evictable)} of {short(slots.total)}"
