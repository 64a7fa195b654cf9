"""Tables that fit any width: columns leave in the order of their importance, and some take what is left over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.cells import cell_len
from rich.text import Text

R = TypeVar("R")
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column. `cell` is given the row and the width it has; the least important leave first where room lacks."""

    header: str
    width: int
    cell: Callable[[R, int], Text | str]
    importance: int = 0  # 0: always there
    align: Literal["left", "right"] = "right"
    grows_to: int = 0  # up to this width, if there is room


def fitting(columns: Sequence[Column[R]], width: int) -> list[tuple[Column[R], int]]:
    """Return the columns that fit, in their order, each with its width."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept) > width:
        least = max(kept, key=lambda column: column.importance)
        if least.importance == 0:
            break
        kept.remove(least)
    spare = max(0, width - _needed(kept))
    widths = [column.width for column in kept]
    growing = [index for index, column in enumerate(kept) if column.grows_to > column.width]
    while spare and growing:
        for index in list(growing):
            if not spare:
                break
            widths[index] += 1
            spare -= 1
            if widths[index] >= kept[index].grows_to:
                growing.remove(index)
    return list(zip(kept, widths, strict=True))


def _needed(columns: Sequence[Column[R]]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def table(columns: Sequence[Column[R]], rows: Sequence[R], width: int, *, sorted_by: str = "") -> list[Text]:
    """Return a header and a line for each row, none wider than `width`."""
    chosen = fitting(columns, width)
    header = Text()
    for number, (column, cells) in enumerate(chosen):
        header.append(" " * _GAP if number else "")
        style = "bold reverse" if column.header and column.header == sorted_by else "bold"
        header.append_text(_fit(Text(column.header, style), cells, column.align))
    lines = [header]
    for row in rows:
        line = Text()
        for number, (column, cells) in enumerate(chosen):
            line.append(" " * _GAP if number else "")
            cell = column.cell(row, cells)
            line.append_text(_fit(cell if isinstance(cell, Text) else Text(cell), cells, column.align))
        lines.append(line)
    return [cut(line, width) for line in lines]


def cut(line: Text, width: int) -> Text:
    """Return `line` in at most `width` cells."""
    if line.cell_len <= width:
        return line
    shorter = line.copy()
    shorter.truncate(max(width, 0), overflow="ellipsis")
    return shorter


def _fit(cell: Text, width: int, align: Literal["left", "right"]) -> Text:
    cell = cut(cell, width)
    pad = " " * (width - cell_len(cell.plain))
    return cell + pad if align == "left" else Text(pad) + cell


def beside(left: Sequence[Text], right: Sequence[Text], left_width: int, gap: int = 3) -> list[Text]:
    """Return two blocks side by side."""
    lines = []
    for number in range(max(len(left), len(right))):
        line = left[number].copy() if number < len(left) else Text()
        if number < len(right):
            line.append(" " * (left_width - line.cell_len + gap)).append_text(right[number])
        lines.append(line)
    return lines
