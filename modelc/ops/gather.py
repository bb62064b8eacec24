"""Addressing by data: an index Load inside an index. Negative indices count from the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from modelc.ir.addresses import claim
from modelc.ir.block import Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.interval import Interval
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    assign,
    axis_of,
    check_known,
    fail,
    fold,
    given,
    grid,
    names,
    point,
    required,
    same_type,
    steering_data,
    text,
)
from modelc.ops.row import first

Outputs = tuple[Value | None, ...]


def wrapped(node: Node, value: Value, k: int, at: tuple[Expr, ...], extent: int) -> Expr:
    """The index that input `k` holds at `at`, into a dimension of `extent`: a number if it is one known number. Raises
    ModelError for indices that the dimension does not have: known ones, or any where it has no element."""
    if not extent and 0 not in value.shape:
        fail(node, f"expected indices into a dimension that has elements; {value.name!r} chooses from none")
    if value.data is not None:
        last = at[-1] if at else None
        part = value.data[..., int(last.value)] if isinstance(last, Const) else value.data
        check_known(node, value, part, -extent, extent - 1)
        if value.data.size == 1:
            number = int(value.data.reshape(()))
            return Const(number + extent if number < 0 else number)
    index: Expr = claim(Load(f"x{k}", at), -extent, extent - 1)
    index = index if value.dtype == "int64" else cast("int64", index)
    if value.data is not None and (value.data >= 0).all():
        return index
    return select(op("lt", index, 0), index + extent, index)


# --- Gather -------------------------------------------------------------------------------------------------------


def _gather_infer(node: Node, inputs: Inputs) -> Types:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    axis = axis_of(node, len(x.shape))
    return ((x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])),)


def _gather(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    axis, rank = axis_of(node, len(x.shape)), len(indices.shape)
    ((_, shape),) = _gather_infer(node, inputs)
    over = point(names(len(shape)))
    index = wrapped(node, indices, 1, over[axis : axis + rank], x.shape[axis])
    read = Load("x0", (*over[:axis], index, *over[axis + rank :]))
    return Definition((), (assign("gather", grid(shape), Load("y0", over), read),))


def _elements_infer(node: Node, inputs: Inputs) -> Types:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    if len(x.shape) != len(indices.shape):
        fail(node, f"expected indices of {len(x.shape)} dimensions, found {list(indices.shape)}")
    return ((x.dtype, indices.shape),)


def _elements(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    axis, over = axis_of(node, len(x.shape)), point(names(len(indices.shape)))
    read = Load("x0", (*over[:axis], wrapped(node, indices, 1, over, x.shape[axis]), *over[axis + 1 :]))
    return Definition((), (assign("gather", grid(indices.shape), Load("y0", over), read),))


def _nd_infer(node: Node, inputs: Inputs) -> Types:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    batch = int(node.attrs.get("batch_dims", 0))
    depth = indices.shape[-1] if indices.shape else 0
    if not 1 <= depth <= len(x.shape) - batch or x.shape[:batch] != indices.shape[:batch]:
        fail(node, f"expected indices that address {list(x.shape)}, found {list(indices.shape)}")
    return ((x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :])),)


def _nd(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    ((_, shape),) = _nd_infer(node, inputs)
    batch, depth, outer = int(node.attrs.get("batch_dims", 0)), indices.shape[-1], len(indices.shape) - 1
    over = point(names(len(shape)))
    chosen = tuple(wrapped(node, indices, 1, (*over[:outer], Const(d)), x.shape[batch + d]) for d in range(depth))
    read = Load("x0", (*over[:batch], *chosen, *over[outer:]))
    return Definition((), (assign("gather", grid(shape), Load("y0", over), read),))


# --- OneHot, Compress, cumulative sums -----------------------------------------------------------------------------


def _one_hot_infer(node: Node, inputs: Inputs) -> Types:
    indices, values = required(node, inputs, 0), required(node, inputs, 2)
    depth = steering_data(node, inputs, 1, "depth")
    assert depth is not None
    axis = int(node.attrs.get("axis", -1))
    axis = axis + len(indices.shape) + 1 if axis < 0 else axis
    return ((values.dtype, (*indices.shape[:axis], int(depth.reshape(-1)[0]), *indices.shape[axis:])),)


def _one_hot(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    indices = required(node, inputs, 0)
    ((_, shape),) = _one_hot_infer(node, inputs)
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    over = point(names(len(shape)))
    position: Expr = Load("x0", (*over[:axis], *over[axis + 1 :]))
    position = position if indices.dtype == "int64" else cast("int64", position)
    hot = op("eq", select(op("lt", position, 0), position + shape[axis], position), over[axis])
    body = select(hot, Load("x2", (Const(1),)), Load("x2", (Const(0),)))
    return Definition((), (assign("onehot", grid(shape), Load("y0", over), body),))


def _compress_infer(node: Node, inputs: Inputs) -> Types:
    x, kept = required(node, inputs, 0), steering_data(node, inputs, 1, "condition")
    assert kept is not None
    count = int(np.count_nonzero(kept))
    if "axis" not in node.attrs:
        return ((x.dtype, (count,)),)
    axis = axis_of(node, len(x.shape))
    return ((x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :])),)


def _compress(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, kept = required(node, inputs, 0), steering_data(node, inputs, 1, "condition")
    assert kept is not None
    ((_, shape),) = _compress_infer(node, inputs)
    table = np.flatnonzero(kept).astype(np.int64)
    over = point(names(len(shape)))
    at: tuple[Expr, ...]
    if "axis" in node.attrs:
        axis = axis_of(node, len(x.shape))
        at = (*over[:axis], Load("kept", (over[axis],)), *over[axis + 1 :])
    else:
        position: Expr = Load("kept", over)
        parts: list[Expr] = []
        for extent in reversed(x.shape):
            parts.append(op("mod", position, extent))
            position = op("floordiv", position, extent)
        at = tuple(reversed(parts))
    block = assign("compress", grid(shape), Load("y0", over), Load("x0", at))
    return Definition((), (block,), ((Buffer("kept", "int64", table.shape), table),))


def _cumulative(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    """A triangle: every element aggregates those before it."""
    x, axis = required(node, inputs, 0), steering_data(node, inputs, 1, "axis")
    assert axis is not None
    rank = len(x.shape)
    along = int(axis.reshape(-1)[0]) % rank
    over, k = point(names(rank)), Var("k")
    order = (
        ("gt" if node.attrs.get("exclusive", 0) else "ge")
        if node.attrs.get("reverse", 0)
        else ("lt" if node.attrs.get("exclusive", 0) else "le")
    )
    iters = (*grid(x.shape), Iter("k", x.shape[along], True))
    read = Load("x0", (*over[:along], k, *over[along + 1 :]))
    aggregation = "add" if node.op == "CumSum" else "mul"
    return Definition(
        (), (fold(aggregation, "cumulative", iters, Load("y0", over), read, (op(order, k, over[along]),)),)
    )


# --- TensorScatter ------------------------------------------------------------------------------------------------


def _cache_infer(node: Node, inputs: Inputs) -> Types:
    cache, update, at = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 2)
    axis = axis_of(node, len(cache.shape), -2)
    if axis == 0 or len(update.shape) != len(cache.shape) or update.shape[axis] > cache.shape[axis]:
        fail(node, f"expected an update of a part of {list(cache.shape)}, found {list(update.shape)}")
    if (*update.shape[:axis], *update.shape[axis + 1 :]) != (*cache.shape[:axis], *cache.shape[axis + 1 :]):
        fail(node, f"expected an update like {list(cache.shape)} but for axis {axis}, found {list(update.shape)}")
    if at is not None and at.shape != cache.shape[:1]:
        fail(node, f"expected an index for each of {cache.shape[0]} sequences, found {list(at.shape)}")
    if text(node, "mode", "linear") not in ("linear", "circular"):
        fail(node, f"expected mode linear or circular, found {text(node, 'mode', 'linear')!r}")
    return ((cache.dtype, cache.shape),)


def _cache(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    """Of every sequence the steps from its index on are the update's; a circular one goes on at its beginning."""
    cache, update, at = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 2)
    axis = axis_of(node, len(cache.shape), -2)
    steps, room = update.shape[axis], cache.shape[axis]
    circular = text(node, "mode", "linear") == "circular"
    over = point(names(len(cache.shape)))
    start: Expr = Const(0)
    if at is not None:
        last = room - 1 if circular else room - steps
        check_known(node, at, at.data, 0, last)
        start = claim(Load("x2", over[:1]), 0, last)
        start = start if at.dtype == "int64" else cast("int64", start)
    step: Expr = over[axis] - start
    step = op("mod", step + room, room) if circular else step
    new = op("and", op("ge", step, 0), op("lt", step, steps))
    near = op("min", op("max", step, 0), steps - 1)
    body = select(new, Load("x1", (*over[:axis], near, *over[axis + 1 :])), Load("x0", over))
    return Definition((), (assign("cache", grid(cache.shape), Load("y0", over), body),))


def _total(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    """Of a running sum at most all terms, from none on."""
    x, axis = required(node, inputs, 0), required(node, inputs, 1).data
    terms = x.shape[int(axis.reshape(-1)[0])] if axis is not None else prod(x.shape)
    low, high = operands[0]
    return min(low * terms, low, 0), max(high * terms, high, 0)


OPERATORS = (
    Operator("TensorScatter", _cache_infer, _cache),
    Operator("Gather", _gather_infer, _gather, addresses=(1,), numbers="selects"),
    Operator("GatherElements", _elements_infer, _elements, addresses=(1,), numbers="selects"),
    Operator("GatherND", _nd_infer, _nd, addresses=(1,), numbers="selects"),
    Operator("OneHot", _one_hot_infer, _one_hot, steers={1: "the depth"}),
    Operator("Compress", _compress_infer, _compress, interval=first, wraps=True),
    Operator("CumSum", same_type, _cumulative, steers={1: "the axis"}, interval=_total, wraps=True),
    Operator("CumProd", same_type, _cumulative),
)
