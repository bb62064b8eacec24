"""Reductions over axes: a table from ONNX name to what is summed and what becomes of the sum; ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import DTYPES, Const, Expr, Load, Var, cast, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.interval import Interval
from modelc.ops.operator import (
    FLOATS,
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    assign,
    axis_of,
    clamped,
    fail,
    fold,
    grid,
    known_ints,
    names,
    normal_axes,
    point,
    required,
    widened,
)
from modelc.ops.row import first


@dataclass(frozen=True)
class Reduction:
    """`each` is aggregated, `finish(total, count, dtype)` is the result; `facts` are those of its row."""

    aggregation: str
    each: Callable[[Expr], Expr] | None = None
    finish: Callable[[Expr, int, str], Expr] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def _mean(total: Expr, count: int, t: str) -> Expr:
    return op("div" if t in FLOATS else "truncdiv", total, const(max(count, 1), t))  # of nothing 0, as ONNX Runtime


def _root(total: Expr, count: int, t: str) -> Expr:
    return op("sqrt", total) if t in FLOATS else cast(t, op("sqrt", cast("float64", total)))


def _log(total: Expr, count: int, t: str) -> Expr:
    return op("log", total) if t in FLOATS else cast(t, op("log", cast("float64", total)))


def _square(x: Expr) -> Expr:
    return x * x


def _magnitude(x: Expr) -> Expr:
    return op("abs", x)


def _sum_within(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    """As many terms as elements become one."""
    x, ((_, shape),) = required(node, inputs, 0), _infer(node, inputs)
    terms = prod(x.shape) // max(prod(shape), 1)
    slack = 0 if DTYPES[x.dtype].kind in "iu" else SLACK
    low, high = (end * terms if end or terms else 0 for end in operands[0])
    return low - abs(low) * slack if low else 0, high + abs(high) * slack if high else 0


SLACK = 1e-6  # of a sum of floats: what rounding may add
WRAPS = {"wraps": True}
REDUCTIONS = {
    "ReduceSum": Reduction("add", facts={"interval": _sum_within, **WRAPS}),
    "ReduceMean": Reduction("add", None, _mean, {"interval": first}),
    "ReduceMax": Reduction("max", facts={"numbers": "chooses", **WRAPS}),
    "ReduceMin": Reduction("min", facts={"numbers": "chooses", **WRAPS}),
    "ReduceProd": Reduction("mul", facts=WRAPS),
    "ReduceSumSquare": Reduction("add", _square, facts=WRAPS),
    "ReduceL1": Reduction("add", _magnitude, facts=WRAPS),
    "ReduceL2": Reduction("add", _square, _root),
    "ReduceLogSum": Reduction("add", None, _log),
}


# Sums of 32-bit whole numbers are exact up to 2**53, and saturate where they are put back, as ONNX Runtime's do.
WIDE = {"int32": "float64", "uint32": "float64"}


def _axes(node: Node, inputs: Inputs) -> tuple[int, ...]:
    """The axes reduced over: all of them if none are named, unless the node says that this means none."""
    rank = len(required(node, inputs, 0).shape)
    axes = known_ints(node, inputs, 1, "axes")
    if not axes:
        return () if node.attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return normal_axes(node, axes, rank)


def kept_shape(shape: Shape, axes: tuple[int, ...], keep: bool) -> Shape:
    return tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)


def kept_point(rank: int, axes: tuple[int, ...], keep: bool) -> tuple[Expr, ...]:
    named = names(rank)
    return tuple(Const(0) if k in axes else Var(named[k]) for k in range(rank) if keep or k not in axes)


def _keeps(node: Node) -> bool:
    keepdims = node.attrs.get("keepdims", 1)
    if keepdims not in (0, 1):  # readers take other numbers for either
        fail(node, f"expected keepdims of 0 or 1, found {keepdims}")
    return bool(keepdims)


def _infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    return ((x.dtype, kept_shape(x.shape, _axes(node, inputs), _keeps(node))),)


@dataclass(frozen=True)
class _Rows:
    """What is left of a tensor when `axes` are reduced: its rows, which the locals hold, and the output's form."""

    iters: tuple[Iter, ...]  # over the tensor
    each: Load
    outer: tuple[Iter, ...]  # over the rows
    row: tuple[Expr, ...]
    shape: Shape
    final: tuple[Iter, ...]  # over the output, which keeps reduced dimensions as one if it is told to
    over: tuple[Expr, ...]
    direct: tuple[Expr, ...]  # the output's indices at a row
    count: int


def _rows(node: Node, inputs: Inputs) -> _Rows:
    x, axes = required(node, inputs, 0), _axes(node, inputs)
    rank, keep = len(x.shape), _keeps(node)
    iters = grid(x.shape, reduce=axes)
    outer, row = tuple(i for i in iters if not i.reduce), kept_point(rank, axes, False)
    final = grid(kept_shape(x.shape, axes, True)) if keep else outer
    return _Rows(
        iters,
        Load("x0", point(names(rank))),
        outer,
        row,
        kept_shape(x.shape, axes, False),
        final,
        point(final),
        kept_point(rank, axes, keep),
        prod(x.shape[a] for a in axes),
    )


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    dtype, rows = required(node, inputs, 0).dtype, _rows(node, inputs)
    reduction, name = REDUCTIONS[node.op], node.op.lower()
    wide = dtype if reduction.aggregation in ("max", "min") else WIDE.get(dtype, accumulator(dtype))
    narrowed = clamped if wide == WIDE.get(dtype) else widened
    each = widened(rows.each, dtype, wide)
    each = reduction.each(each) if reduction.each else each
    if len(rows.outer) == len(rows.iters):
        final = reduction.finish(each, 1, wide) if reduction.finish else each
        return Definition((), (assign(name, rows.iters, Load("y0", rows.direct), narrowed(final, wide, dtype)),))
    if reduction.finish is None and wide == dtype:
        return Definition((), (fold(reduction.aggregation, name, rows.iters, Load("y0", rows.direct), each),))
    total: Expr = Load("total", rows.row)
    final = reduction.finish(total, rows.count, wide) if reduction.finish else total
    blocks = (
        fold(reduction.aggregation, "total", rows.iters, Load("total", rows.row), each),
        assign(name, rows.final, Load("y0", rows.over), narrowed(final, wide, dtype)),
    )
    return Definition((Buffer("total", wide, rows.shape),), blocks)


def _log_sum_exp(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """log(sum(exp(x))), with the greatest element taken out first."""
    dtype, rows = required(node, inputs, 0).dtype, _rows(node, inputs)
    wide = accumulator(dtype) if dtype in FLOATS else "float64"
    each = widened(rows.each, dtype, wide)
    peak, base, total = (Load(b, rows.row) for b in ("peak", "base", "total"))
    if len(rows.outer) == len(rows.iters):
        return Definition((), (assign("logsumexp", rows.iters, Load("y0", rows.direct), rows.each),))
    infinite = op("eq", op("abs", peak), const(inf, wide))
    final = widened(base + op("log", total), wide, dtype)
    blocks: tuple[Block, ...] = (
        fold("max", "peak", rows.iters, peak, each),
        assign("base", rows.outer, base, select(infinite, const(0, wide), peak)),
        fold("add", "total", rows.iters, total, op("exp", each - base)),
        assign("logsumexp", rows.final, Load("y0", rows.over), final),
    )
    return Definition(tuple(Buffer(b, wide, rows.shape) for b in ("peak", "base", "total")), blocks)


# --- ArgMax and ArgMin --------------------------------------------------------------------------------------------


def _arg_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    if not x.shape[axis] and any(x.shape):
        fail(node, f"expected elements along axis {axis} to choose from, found {list(x.shape)}")
    return (("int64", kept_shape(x.shape, (axis,), _keeps(node))),)


def _arg_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis, keep = axis_of(node, rank), _keeps(node)
    over = kept_point(rank, (axis,), keep)
    iters, last = grid(x.shape, reduce=(axis,)), bool(node.attrs.get("select_last_index", 0))
    position: Expr = Var(names(rank)[axis])
    end = x.shape[axis] - 1
    locals_ = [Buffer("best", x.dtype, kept_shape(x.shape, (axis,), keep))]
    best_index = Load("from_end" if last else "y0", over)
    body = (Load("x0", point(names(rank))), end - position if last else position)
    blocks = [
        Block("best", iters, (Load("best", over), best_index), body, "argmax" if node.op == "ArgMax" else "argmin")
    ]
    if last:  # of equal elements the lowest index wins: count from the end
        locals_.append(Buffer("from_end", "int64", locals_[0].shape))
        outer = tuple(i for i in iters if not i.reduce)
        blocks.append(assign("last", outer, Load("y0", over), end - best_index))
    return Definition(tuple(locals_), tuple(blocks))


def _places(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    return 0, required(node, inputs, 0).shape[int(node.attrs.get("axis", 0))] - 1


AXES = {1: "the axes"}
OPERATORS = (
    *(Operator(name, _infer, _define, steers=AXES, **reduction.facts) for name, reduction in REDUCTIONS.items()),
    Operator("ReduceLogSumExp", _infer, _log_sum_exp, steers=AXES),
    Operator("ArgMax", _arg_infer, _arg_define, interval=_places),
    Operator("ArgMin", _arg_infer, _arg_define, interval=_places),
)
