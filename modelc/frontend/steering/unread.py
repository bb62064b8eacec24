"""Rows of tables that no sample's indices named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelc.frontend.control.structure import row_of
from modelc.frontend.steering.flow import consumers_of
from modelc.frontend.steering.uses import Uses

FROM_TABLES = {"Cast", "Identity", "DequantizeLinear"}  # a table that these give has the rows of what they read
MOST_RUNS = 3  # of unread rows that a sentence names


def unread_rows(uses: Uses, feeds: Iterable[Mapping[str, NDArray[Any]]]) -> tuple[str, ...]:
    """One sentence for each of the model's tables of which some rows were named by the indices of none of the `feeds`:
    where its inputs are the indices, as they are or moved, and nothing else reads the table."""
    read: dict[str, NDArray[np.bool_]] = {}
    tables = tuple(_tables(uses))
    for feed in feeds:
        for table, name, rows in tables:
            numbers = np.asarray(feed.get(name, np.zeros(0))).astype(np.int64).reshape(-1)
            named = read.setdefault(table, np.zeros(rows, np.bool_))
            named[numbers[(-rows <= numbers) & (numbers < rows)]] = True
    return tuple(_sentence(table, named) for table, named in read.items() if not named.all())


def index_inputs(uses: Uses) -> frozenset[str]:
    """The inputs of which `unread_rows` looks at the numbers."""
    return frozenset(name for _, name, _ in _tables(uses))


def _tables(uses: Uses) -> Iterator[tuple[str, str, int]]:
    """The tables that inputs index, the inputs, and how many rows each table has."""
    shapes = _constant_shapes(uses)
    consumers = consumers_of(uses)
    gathers: dict[str, list[tuple[str | None, int, int]]] = {}
    for table in shapes:
        waiting = [table]
        while waiting:
            value = waiting.pop()
            for node, position in consumers.get(value, ()):
                if row_of(node).name in FROM_TABLES and position == 0:
                    waiting += node.output
                else:
                    gathers.setdefault(table, []).append(_gathered(uses, node, position, shapes[table]))
    for table, places in gathers.items():
        if all(name is not None for name, _, _ in places) and len({axis for _, axis, _ in places}) == 1:
            yield from ((table, name, rows) for name, _, rows in dict.fromkeys(places) if name is not None)


def _constant_shapes(uses: Uses) -> dict[str, tuple[int, ...]]:
    shapes = {t.name: tuple(t.dims) for t in uses.graph.initializer if t.name not in uses.inputs}
    for _, node in uses.nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                shapes[node.output[0]] = tuple(attribute.t.dims)
    return {name: shape for name, shape in shapes.items() if shape and prod(shape)}


def _gathered(uses: Uses, node: onnx.NodeProto, position: int, shape: tuple[int, ...]) -> tuple[str | None, int, int]:
    """The input that is the node's indices, None where there is none or the node reads the table otherwise; the axis
    that they index, and its extent."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if row_of(node).name != "Gather" or position or not -len(shape) <= axis < len(shape):
        return None, 0, 0
    value = node.input[1]
    while value not in uses.inputs:
        before = uses.producers.get(value)
        if before is None or (before.op_type != "Cast" and row_of(before).numbers != "moves"):
            return None, 0, 0
        value = before.input[0]
    return value, axis % len(shape), shape[axis]


def _sentence(table: str, read: NDArray[np.bool_]) -> str:
    edges = np.flatnonzero(np.diff(np.concatenate(([True], read, [True])).astype(np.int8)))
    first, end = edges[::2], edges[1::2]
    if len(first) > MOST_RUNS:
        count = int(read.size - np.count_nonzero(read))
        of_all = f"{count:,} of the {read.size:,} rows of the table {table!r}"
        return f"{of_all} were not read, row {first[0]:,} the first of them"
    runs = [f"{a:,}" if b - a == 1 else f"{a:,} to {b - 1:,}" for a, b in zip(first, end, strict=True)]
    which = " and ".join(filter(None, (", ".join(runs[:-1]), runs[-1])))
    single = len(runs) == 1 and end[0] - first[0] == 1
    return f"row{'s' * (not single)} {which} of the table {table!r} {'was' if single else 'were'} not read"
