"""What a package, a model and their results look like in a notebook and in a terminal. Standard library alone."""

from __future__ import annotations

from collections.abc import Sequence
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
