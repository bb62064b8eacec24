"""Rectangles of moves that cross: what is contiguous along one loop is stored along another, transposed in registers.

unroll c1:16                       row k of the source, for each of 16 k         (16 loads)
  vector d1:16                ->   four rounds of exchanges between pairs of rows (64 shuffles of two vectors)
    T[c, d] = X[d, c]              column k of it                                (16 stores)

Where either has fewer, rows are widened, and columns narrowed, to a square's side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx as tx

from modelc.codegen.vectors import int32
from modelc.ir.expr import Load, Op
from modelc.ir.nest import Leaf, Loop

MAX_SIDE = 16  # of a square, whose rows have to stay in registers


def crossing_moves(loop: Loop) -> tuple[Loop, Leaf, Load] | None:
    """The vector loop, the leaf and what it reads, if the unrolled `loop` is a rectangle of unconditional moves, or of
    casts."""
    if loop.tag != "unroll" or len(loop.body) != 1 or not 1 < loop.extent <= MAX_SIDE:
        return None
    (inner,) = loop.body
    if not isinstance(inner, Loop) or inner.tag != "vector" or len(inner.body) != 1:
        return None
    if not 1 < inner.extent <= MAX_SIDE:
        return None
    (leaf,) = inner.body
    if not isinstance(leaf, Leaf) or leaf.part != "assign" or leaf.where or len(leaf.body) != 1:
        return None
    (read,) = leaf.body
    while isinstance(read, Op) and read.name == "cast":
        (read,) = read.args
    return (inner, leaf, read) if isinstance(read, Load) else None


def transposed(rows: list[Any], count: int, named: Callable[[Any], Any]) -> list[Any]:
    """The `count` columns of the matrix whose rows are vectors."""
    height = len(rows)
    side = 1 << (max(height, count) - 1).bit_length()
    rows = [resized(r, count, side) for r in rows]
    rows += [rows[0]] * (side - height)  # of which nothing is used
    distance = 1
    while distance < side:
        rows = [named(r) for r in rows]
        first = [k if k & distance == 0 else k - distance + side for k in range(side)]
        second = [k + distance if k & distance == 0 else k + side for k in range(side)]
        changed = list(rows)
        for k in range(side):
            if k & distance == 0:
                pair = [rows[k], rows[k + distance]]
                changed[k] = tx.Shuffle(pair, [int32(i) for i in first])
                changed[k + distance] = tx.Shuffle(pair, [int32(i) for i in second])
        rows, distance = changed, 2 * distance
    return [resized(r, side, height) for r in rows[:count]]


def resized(vector: Any, lanes: int, wanted: int) -> Any:
    """A vector of `lanes` as one of `wanted`: its first lanes, or with more behind them that nothing is known of."""
    if lanes == wanted:
        return vector
    copies = -(-wanted // lanes)  # TVM wants no more lanes than it is given
    return tx.Shuffle([vector] * copies, [int32(k) for k in range(wanted)])
