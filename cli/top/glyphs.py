"""Numbers as text: rates, times, shares, bars and sparklines. States differ by glyph, not by colour alone."""

from collections.abc import Sequence

from rich.text import Text

from cli.top.rows import Hits, SlotUse

NO_TRAFFIC = "no traffic"
NOTHING = "–"
_SPARKS = "▁▂▃▄▅▆▇█"
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

# A part of a bar: how much, its glyph, its style.
Part = tuple[float, str, str]

HIT_PARTS = (("device", "█", "green"), ("host", "▓", "yellow"), ("storage", "▒", "blue"))
_COMPUTED = ("·", "bright_black")
SLOT_PARTS = (("in_use", "█", "magenta"), ("evictable", "▒", "cyan"), ("free", "·", "bright_black"))


def short(value: float | None, unit: str = "") -> str:
    """Return a number in four or five characters: 7, 0.25, 1.2k, 35M."""
    if value is None:
        return NOTHING
    for factor, letter in _STEPS:
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)}{letter}{unit}"
    return f"{_three(value)}{unit}"


def _three(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) < 0.01:
        return "<.01"
    if abs(value) < 9.995:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.1f}".rstrip("0").rstrip(".") if abs(value) < 99.95 else f"{value:.0f}"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value < 1e-3:
        return f"{value * 1e6:.0f}µs"
    if value < 0.9995:
        return f"{value * 1e3:.0f}ms" if value >= 0.00995 else f"{value * 1e3:.1f}ms"
    return f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def percent(value: float | None) -> str:
    return NO_TRAFFIC if value is None else f"{100 * value:.0f} %"


def bar(parts: Sequence[Part], width: int) -> Text:
    """Return parts side by side on `width` cells. What there is any of gets a cell, as long as there is room."""
    total = sum(max(amount, 0.0) for amount, _, _ in parts)
    text = Text()
    if not total or width <= 0:
        return text.append(" " * max(width, 0))
    for (_, glyph, style), cells in zip(parts, _cells([amount for amount, _, _ in parts], width), strict=True):
        text.append(glyph * cells, style)
    return text


def _cells(amounts: Sequence[float], width: int) -> list[int]:
    """Divide `width` cells among amounts, the largest remainders first; together they are `width`."""
    total = sum(amounts)
    exact = [width * amount / total for amount in amounts]
    cells = [int(each) for each in exact]
    by_remainder = sorted(range(len(amounts)), key=lambda index: cells[index] - exact[index])
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    for index, amount in enumerate(amounts):
        largest = max(range(len(cells)), key=cells.__getitem__)
        if amount > 0 and not cells[index] and cells[largest] > 1:
            cells[index] += 1
            cells[largest] -= 1
    return cells


def hit_bar(hits: Hits | None, width: int) -> Text:
    if hits is None:
        return Text(NO_TRAFFIC[:width].ljust(width), "bright_black")
    parts: list[Part] = [(getattr(hits, tier), glyph, style) for tier, glyph, style in HIT_PARTS]
    return bar([*parts, (max(hits.prompt - hits.cached, 0.0), *_COMPUTED)], width)


def slot_bar(slots: SlotUse | None, width: int) -> Text:
    if slots is None:
        return Text("none".ljust(width)[:width], "bright_black")
    return bar([(getattr(slots, state), glyph, style) for state, glyph, style in SLOT_PARTS], width)


def legend(parts: Sequence[tuple[str, str, str]], *others: tuple[str, str, str]) -> Text:
    """Return what glyphs mean."""
    text = Text()
    for number, (name, glyph, style) in enumerate((*parts, *others)):
        text.append("  " if number else "").append(glyph, style).append(f" {name.replace('_', ' ')}", "bright_black")
    return text


def hit_legend() -> Text:
    return legend(HIT_PARTS, ("computed", *_COMPUTED))


def sparkline(values: Sequence[float | None], width: int, *, top: float | None = None) -> Text:
    """Return the last `width` values; a gap where nothing is known. `top` is the value of a whole cell."""
    shown = list(values)[-width:] if width > 0 else []
    highest = top or max((value for value in shown if value is not None), default=0.0)
    text = Text(" " * (max(width, 0) - len(shown)))
    for value in shown:
        if value is None:
            text.append(" ")
        else:
            level = 0 if not highest else min(len(_SPARKS) - 1, int(value / highest * len(_SPARKS)))
            text.append(_SPARKS[level])
    return text
