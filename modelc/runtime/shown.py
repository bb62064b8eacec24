"""What a package, a model and their results look like in a notebook and in a terminal. Standard library alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MOST_ROWS = 200
BAR = "background:#4c78a8;height:0.8em;width:{:.1f}%"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def names_shown(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


class Plain(str):
    """A text that shows itself without quotes: an extent among numbers."""

    def __repr__(self) -> str:
        return str(self)


def range_text(numbers: range) -> str:
    """What a dimension may be, in words."""
    step = f" in steps of {numbers.step}" if numbers.step > 1 else ""
    return f"{numbers[0]} to {numbers[-1]}{step}"


def extent_text(extent: Any, units: Mapping[str, int]) -> str:
    """An extent, which may be an expression of sizes, in terms of the dimensions: `units` times as much as the sizes
    are. A dimension is a whole number of its units, so that it may be divided wherever its size stands."""
    text = str(extent)
    for name, unit in units.items():
        if unit == 1:
            continue

        def in_units(match: re.Match[str], name: str = name, unit: int = unit) -> str:
            times = int(match[1] or 1)
            if times % unit == 0:
                return name if times == unit else f"{name} * {times // unit}"
            return f"{name} // {unit // times}" if unit % times == 0 else f"{name} // {unit} * {times}"

        text = re.sub(rf"\b{name}\b(?: \* ([0-9]+)\b)?", in_units, text)
    return text


def extents_shown(shape: Sequence[Any], units: Mapping[str, int]) -> tuple[Any, ...]:
    """A shape of numbers, and of texts where its extents are expressions of sizes."""
    return tuple(n if isinstance(n, int) else Plain(extent_text(n, units)) for n in shape)


def shape_text(shape: Sequence[Any], units: Mapping[str, int]) -> str:
    """A shape whose extents may be expressions of sizes."""
    return f"[{', '.join(extent_text(extent, units) for extent in shape)}]"


def boundary(inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """What goes in and comes out, of tensors with name, dtype and shape."""
    sides = (", ".join(f"{t.name} {t.dtype}{list(t.shape)}" for t in tensors) for tensors in (inputs, outputs))
    return " -> ".join(sides)


def table(names: Sequence[str], rows: Sequence[Sequence[object]], bars: Sequence[float] = ()) -> str:
    """A table in HTML, with a bar in each row as long as its number of `bars` is, beside the largest of them."""
    longest = max(bars, default=0.0)
    lines = []
    for k, row in enumerate(rows[:MOST_ROWS]):
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        if bars:
            bar = BAR.format(100 * bars[k] / longest if longest else 0.0)
            cells += f'<td style="width:10em"><div style="{bar}"></div></td>'
        lines.append(f"<tr>{cells}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in (*names, *[""] * bool(bars)))
    more = f"<p>and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"


def page(title: str, *tables: str) -> str:
    """Tables below a title."""
    return f"<div><p><b>{escape(title)}</b></p>{''.join(tables)}</div>"
