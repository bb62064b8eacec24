"""Reductions over axes: a table from ONNX name to what is summed and what becomes of the sum; ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op, select
from modelc.ir.graph import Node, Value
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
    fold,
    grid,
    known_ints,
    names,
    normal_axes,
    point,
    required,
    widened,
)


@dataclass(frozen=True)
class Reduction:
    """`each` is aggregated, `finish(total, count, dtype)` is the result."""

    aggregation: str
    each: Callable[[Expr], Expr] | None = None
    finish: Callable[[Expr, int, str], Expr] | None = None


def _mean(total: Expr, count: int, t: str) -> Expr:
    return op("div" if t in FLOATS else "truncdiv", total, const(count, t))


def _root(total: Expr, count: int, t: str) -> Expr:
    return op("sqrt", total) if t in FLOATS else cast(t, op("sqrt", cast("float64", total)))


def _log(total: Expr, count: int, t: str) -> Expr:
    return op("log", total) if t in FLOATS else cast(t, op("log", cast("float64", total)))


def _square(x: Expr) -> Expr:
    return x * x


def _magnitude(x: Expr) -> Expr:
    return op("abs", x)


REDUCTIONS = {
    "ReduceSum": Reduction("add"),
    "ReduceMean": Reduction("add", None, _mean),
    "ReduceMax": Reduction("max"),
    "ReduceMin": Reduction("min"),
    "ReduceProd": Reduction("mul"),
    "ReduceSumSquare": Reduction("add", _square),
    "ReduceL1": Reduction("add", _magnitude),
    "ReduceL2": Reduction("add", _square, _root),
    "ReduceLogSum": Reduction("add", None, _log),
}


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


def _infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    return ((x.dtype, kept_shape(x.shape, _axes(node, inputs), bool(node.attrs.get("keepdims", 1)))),)


def _parts(
    node: Node, inputs: Inputs
) -> tuple[Value, tuple[Iter, ...], tuple[Expr, ...], tuple[Expr, ...], Shape, int]:
    x, axes = required(node, inputs, 0), _axes(node, inputs)
    keep = bool(node.attrs.get("keepdims", 1))
    shape, over = kept_shape(x.shape, axes, keep), kept_point(len(x.shape), axes, keep)
    iters = grid(x.shape, reduce=axes)
    return x, iters, point(names(len(x.shape))), over, shape, prod(x.shape[a] for a in axes)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, iters, at, over, shape, count = _parts(node, inputs)
    reduction = REDUCTIONS[node.op]
    wide = x.dtype if reduction.aggregation in ("max", "min") else accumulator(x.dtype)
    each = widened(Load("x0", at), x.dtype, wide)
    each = reduction.each(each) if reduction.each else each
    outer = tuple(i for i in iters if not i.reduce)
    if len(outer) == len(iters):
        final = reduction.finish(each, 1, wide) if reduction.finish else each
        return Definition((), (assign(node.op.lower(), iters, Load("y0", over), widened(final, wide, x.dtype)),))
    if reduction.finish is None and wide == x.dtype:
        return Definition((), (fold(reduction.aggregation, node.op.lower(), iters, Load("y0", over), each),))
    total: Expr = Load("total", over)
    final = reduction.finish(total, count, wide) if reduction.finish else total
    blocks = (
        fold(reduction.aggregation, "total", iters, Load("total", over), each),
        assign(node.op.lower(), outer, Load("y0", over), widened(final, wide, x.dtype)),
    )
    return Definition((Buffer("total", wide, shape),), blocks)


def _log_sum_exp(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """log(sum(exp(x))), with the greatest element taken out first."""
    x, iters, at, over, shape, _ = _parts(node, inputs)
    wide = accumulator(x.dtype) if x.dtype in FLOATS else "float64"
    outer = tuple(i for i in iters if not i.reduce)
    each = widened(Load("x0", at), x.dtype, wide)
    peak = Load("peak", over)
    infinite = op("eq", op("abs", peak), const(inf, wide))
    base = select(infinite, const(0, wide), peak)
    blocks: tuple[Block, ...] = (
        fold("max", "peak", iters, peak, each),
        assign("base", outer, Load("base", over), base),
        fold("add", "total", iters, Load("total", over), op("exp", each - Load("base", over))),
        assign(
            "logsumexp",
            outer,
            Load("y0", over),
            widened(Load("base", over) + op("log", Load("total", over)), wide, x.dtype),
        ),
    )
    if len(outer) == len(iters):
        return Definition((), (assign("logsumexp", iters, Load("y0", over), Load("x0", at)),))
    return Definition(tuple(Buffer(b, wide, shape) for b in ("peak", "base", "total")), blocks)


# --- ArgMax and ArgMin --------------------------------------------------------------------------------------------


def _arg_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    return (("int64", kept_shape(x.shape, (axis,), bool(node.attrs.get("keepdims", 1)))),)


def _arg_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis, keep = axis_of(node, rank), bool(node.attrs.get("keepdims", 1))
    over = kept_point(rank, (axis,), keep)
    iters, last = grid(x.shape, reduce=(axis,)), bool(node.attrs.get("select_last_index", 0))
    position: Expr = Var(names(rank)[axis])
    end = x.shape[axis] - 1
    locals_ = [Buffer("best", x.dtype, kept_shape(x.shape, (axis,), keep))]
    found = Load("from_end" if last else "y0", over)
    body = (Load("x0", point(names(rank))), end - position if last else position)
    blocks = [Block("best", iters, (Load("best", over), found), body, "argmax" if node.op == "ArgMax" else "argmin")]
    if last:  # of equal elements the lowest index wins: count from the end
        locals_.append(Buffer("from_end", "int64", locals_[0].shape))
        outer = tuple(i for i in iters if not i.reduce)
        blocks.append(assign("last", outer, Load("y0", over), end - found))
    return Definition(tuple(locals_), tuple(blocks))


OPERATORS = (
    *(Operator(name, _infer, _define) for name in REDUCTIONS),
    Operator("ReduceLogSumExp", _infer, _log_sum_exp),
    Operator("ArgMax", _arg_infer, _arg_define),
    Operator("ArgMin", _arg_infer, _arg_define),
)
