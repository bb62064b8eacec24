"""Rectangles of moves that cross: what is contiguous along one loop is stored along another, transposed in registers.

unroll c1:16                       row k of the source, for each of 16 k         (16 loads)
  vector d1:16                ->   four rounds of exchanges between pairs of rows (64 shuffles of two vectors)
    T[c, d] = X[d, c]              column k of it                                (16 stores)

Where either has fewer, rows are widened, and columns narrowed, to a square's side. Elements that lie together in both
(pairs of bfloat16 that an intrinsic reads as one) move as one wider element; where columns lie one after the other,
rows are interleaved and stored as one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from modelc.codegen.lean_tvm import tx
from modelc.codegen.lower.expressions import Expressions
from modelc.codegen.lower.leaves import lane_step
from modelc.codegen.lower.places import Memory, Scope, bind, stored_dtype
from modelc.codegen.vectors import int32, ramp
from modelc.ir.affine import simplify
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, op, substitute
from modelc.ir.nest import For, Leaf

MAX_SIDE = 16  # of a square, whose rows have to stay in registers
MOST_TOGETHER = 4  # elements that move as one
MOST_BITS = 64  # of what they are together
LINE_BITS = 512  # of a vector that is stored whole


def crossing_moves(loop: For, side: int = MAX_SIDE) -> tuple[For, Leaf, Load] | None:
    """The vector loop, the leaf and what it reads, if the unrolled `loop` is a rectangle of unconditional moves, or of
    casts."""
    if loop.tag != "unroll" or len(loop.body) != 1 or not 1 < loop.extent <= side:
        return None
    (inner,) = loop.body
    if not isinstance(inner, For) or inner.tag != "vector" or len(inner.body) != 1:
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


def crossed(code: Expressions, loop: For, scope: Scope) -> list[Any] | None:
    """Statements that transpose a rectangle of moves in registers, if `loop` is one between places that are contiguous
    each along another of its two loops."""
    moves = crossing_moves(loop, MAX_SIDE * MOST_TOGETHER)
    if moves is None:
        return None
    inner, leaf, read = moves
    (write,) = leaf.writes
    source, place = (scope.storage[x.buffer] for x in (read, write))
    if not isinstance(source, Memory) or not isinstance(place, Memory):
        return None
    if "bool" in (source.region.dtype, place.region.dtype):
        return None

    def row(k: int) -> Scope:
        at = bind(bind(scope, loop.var, Var(loop.var), loop.extent), inner.var, Const(k), 1)
        return replace(at, vector=(loop.var, loop.extent))

    everywhere = bind(bind(scope, loop.var, Var(loop.var), loop.extent), inner.var, Var(inner.var), inner.extent)
    flat = code.flat(write, everywhere)
    group = together(flat, loop, inner, everywhere.ranges)
    bits = 8 * DTYPES[place.region.dtype].itemsize
    if lane_step(code.flat(read, row(0)), loop.var) != 1 or bits * group > MOST_BITS:
        return None
    if not group < loop.extent <= MAX_SIDE * group:
        return None
    count, elements = loop.extent // group, inner.extent * group
    whole = group == 1 and lane_step(flat, loop.var) == inner.extent and bits * loop.extent * inner.extent <= LINE_BITS

    def store(k: int, value: Any, lanes: int) -> Any:
        """A vector stored from column `k` on."""
        at = bind(bind(scope, loop.var, Const(k), 1), inner.var, Const(0), 1)
        base = code.index_of(op("add", code.flat(write, at), place.offset), at)
        return tx.BufferStore(place.buffer, value, [ramp(base, 1, lanes)])

    def stores() -> list[Any]:
        rows = [code.value(leaf.body[0], row(k))[0] for k in range(inner.extent)]
        if whole:
            return [store(0, interleaved(rows, count), count * elements)]
        if group > 1:
            rows = [tx.reinterpret(f"uint{bits * group}x{count}", r) for r in rows]
        columns = transposed(rows, count, code.bound)
        if group > 1:
            columns = [tx.reinterpret(f"{stored_dtype(place.region.dtype)}x{elements}", c) for c in columns]
        return [store(k * group, c, elements) for k, c in enumerate(columns)]

    return code.with_bindings(stores)


def together(flat: Expr, loop: For, inner: For, ranges: Mapping[str, int]) -> int:
    """How many elements lie together along `loop`, whose columns, each as long as `inner`, are stored at `flat`: 1
    where none do; 0 where columns are not stored in a row at all."""
    step = lane_step(flat, inner.var)
    if step is None or step < 1 or step > MOST_TOGETHER or loop.extent % step:
        return 0
    if step == 1:
        return 1
    parts = {"column": loop.extent // step, "element": step}
    split = op("add", op("mul", Var("column"), step), Var("element"))
    offset = simplify(substitute(flat, {loop.var: split}), {**ranges, **parts})
    return step if lane_step(offset, "element") == 1 and lane_step(offset, "column") is not None else 0


def interleaved(rows: list[Any], count: int) -> Any:
    """The first elements of all rows, then the second ones, and so on, as one vector."""
    return tx.Shuffle(rows, [int32(k + count * row) for k in range(count) for row in range(len(rows))])


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
