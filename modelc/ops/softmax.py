"""Softmax and its kin, along one axis: greatest element, exponentials, their sum, its inverse (one division a row)."""

from __future__ import annotations

from modelc.ir.block import Block, Buffer
from modelc.ir.expr import Load, Var, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.interval import UNIT
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    accumulator,
    assign,
    axis_of,
    fold,
    grid,
    names,
    point,
    required,
    same_type,
    widened,
)
from modelc.ops.reduce import kept_point, kept_shape


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis = axis_of(node, rank, -1)
    wide = accumulator(x.dtype)
    iters, reducing = grid(x.shape), grid(x.shape, reduce=(axis,))
    at = point(names(rank))
    row = tuple(e for k, e in enumerate(kept_point(rank, (axis,), True)) if k != axis)
    each = widened(Load("x0", at), x.dtype, wide)
    rows = kept_shape(x.shape, (axis,), False)
    peak, total, inverse, exps = Load("peak", row), Load("total", row), Load("inverse", row), Load("exps", at)
    highest = fold("max", "peak", reducing, peak, each)
    if node.op == "LogSoftmax":
        blocks: tuple[Block, ...] = (
            highest,
            fold("add", "total", reducing, total, op("exp", each - peak)),
            assign("logsoftmax", iters, Load("y0", at), widened(each - peak - op("log", total), wide, x.dtype)),
        )
        return Definition((Buffer("peak", wide, rows), Buffer("total", wide, rows)), blocks)
    blocks = (
        highest,
        assign("exp", iters, exps, op("exp", each - peak)),
        fold("add", "total", reducing, total, exps),
        assign("inverse", tuple(i for i in reducing if not i.reduce), inverse, op("div", const(1.0, wide), total)),
        assign("softmax", iters, Load("y0", at), widened(exps * inverse, wide, x.dtype)),
    )
    locals_ = tuple(Buffer(n, wide, x.shape if n == "exps" else rows) for n in ("peak", "exps", "total", "inverse"))
    return Definition(locals_, blocks)


def _hardmax(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """One at the first greatest element along the axis, zero elsewhere."""
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis = axis_of(node, rank, -1)
    at = point(names(rank))
    row = kept_point(rank, (axis,), False)
    best, where = Load("best", row), Load("first", row)
    position = Var(names(rank)[axis])
    rows = kept_shape(x.shape, (axis,), False)
    blocks = (
        Block("best", grid(x.shape, reduce=(axis,)), (best, where), (Load("x0", at), position), "argmax"),
        assign("hardmax", grid(x.shape), Load("y0", at), cast(x.dtype, op("eq", where, position))),
    )
    return Definition((Buffer("best", x.dtype, rows), Buffer("first", "int64", rows)), blocks)


OPERATORS = (
    Operator("Softmax", same_type, _define, interval=UNIT),
    Operator("LogSoftmax", same_type, _define),
    Operator("Hardmax", same_type, _hardmax, interval=UNIT),
)
