"""Tensors with other values around or instead of their own: padding, cropping, triangles."""

from __future__ import annotations

from collections.abc import Sequence

from modelc.ir.expr import Const, Expr, Load, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.interval import Interval, union
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    assign,
    fail,
    given,
    grid,
    known_ints,
    known_scalar,
    names,
    normal_axes,
    point,
    required,
    same_type,
    scalar,
    text,
    within,
)

Outputs = tuple[Value | None, ...]


def _pads(node: Node, inputs: Inputs) -> list[tuple[int, int]]:
    """Before and after, for every dimension."""
    rank = len(required(node, inputs, 0).shape)
    pads = known_ints(node, inputs, 1, "pads")
    if pads is None:
        fail(node, "expected pads, found none")
    axes = known_ints(node, inputs, 3, "axes")
    axes = tuple(range(rank)) if axes is None else normal_axes(node, axes, rank)
    if len(pads) != 2 * len(axes):
        fail(node, f"expected {2 * len(axes)} pads, found {list(pads)}")
    result = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        result[axis] = (pads[k], pads[k + len(axes)])
    return result


def _pad_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, _pads(node, inputs), strict=True))
    if shape and min(shape) < 0:
        fail(node, f"expected pads that leave something of {list(x.shape)}, found {_pads(node, inputs)}")
    return ((x.dtype, shape),)


def _pad(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    ((dtype, shape),) = _pad_infer(node, inputs)
    mode = text(node, "mode", "constant")
    iters, over = grid(shape), point(names(len(shape)))
    at: list[Expr] = []
    conditions: list[Expr] = []
    ranges = {i.name: i.extent for i in iters}
    for i, n, (before, after) in zip(over, x.shape, _pads(node, inputs), strict=True):
        inside = i - before
        at.append(inside)
        if before <= 0 and after <= 0:
            continue
        if mode == "edge":
            at[-1] = op("min", op("max", inside, 0), n - 1)
        elif mode == "wrap":
            at[-1] = inside % n
        elif mode == "reflect":
            at[-1] = _mirrored(inside, n, before, after)
        elif mode == "constant":
            conditions += within(inside, n, ranges)
        else:
            fail(node, f"expected mode constant, reflect, edge or wrap, found {mode!r}")
    body: Expr = Load("x0", tuple(at))
    if conditions:
        inside = conditions[0]
        for c in conditions[1:]:
            inside = op("and", inside, c)
        body = select(inside, body, _filling(node, inputs, dtype))
    return Definition((), (assign("pad", iters, Load("y0", over), body),))


def _mirrored(i: Expr, n: int, before: int, after: int) -> Expr:
    """Indices reflected at the first and the last element, as often as the padding reaches."""
    if n == 1:
        return Const(0)
    if before < n and after < n:
        front: Expr = op("max", i, 0 - i) if before > 0 else i
        return op("min", front, 2 * (n - 1) - front) if after > 0 else front
    period = 2 * (n - 1)
    return op("min", i % period, period - i % period)


def _filling(node: Node, inputs: Inputs, dtype: str) -> Expr:
    value = given(inputs, 2)
    if value is None:
        return const(node.attrs.get("value", 0), dtype)
    return scalar(value) or Load("x2", (Const(0),) * len(value.shape))


def _padded(node: Node, inputs: Inputs, operands: Sequence[Interval]) -> Interval:
    if text(node, "mode", "constant") != "constant":
        return operands[0]
    return union((operands[0], operands[2] if given(inputs, 2) is not None else (0, 0)))


# --- Trilu, CenterCropPad ---------------------------------------------------------------------------------------------


def _trilu(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    diagonal = known_scalar(node, inputs, 1, "k")
    k = 0 if diagonal is None else int(diagonal)
    iters, over = grid(x.shape), point(names(len(x.shape)))
    row, column = over[-2:]
    kept = op("ge" if node.attrs.get("upper", 1) else "le", column - row, k)
    body = select(kept, Load("x0", over), const(0, x.dtype))
    return Definition((), (assign("trilu", iters, Load("y0", over), body),))


def _crop_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    wanted = known_ints(node, inputs, 1, "shape")
    axes = normal_axes(node, node.attrs.get("axes", range(len(source))), len(source))
    if wanted is None or len(wanted) != len(axes):
        fail(node, f"expected a shape of {len(axes)} numbers, found {wanted}")
    given_ = dict(zip(axes, wanted, strict=True))
    return tuple(given_.get(k, n) for k, n in enumerate(source))


def _crop(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, shape = required(node, inputs, 0), _crop_shape(node, inputs)
    iters, over = grid(shape), point(names(len(shape)))
    ranges = {i.name: i.extent for i in iters}
    at = tuple(i + (n - m) // 2 if n >= m else i - (m - n) // 2 for i, n, m in zip(over, x.shape, shape, strict=True))
    body: Expr = Load("x0", at)
    for condition in [c for i, n in zip(at, x.shape, strict=True) for c in within(i, n, ranges)]:
        body = select(condition, body, const(0, x.dtype))
    return Definition((), (assign("crop", iters, Load("y0", over), body),))


OPERATORS = (
    Operator("Pad", _pad_infer, _pad, steers={1: "the pads", 3: "the axes"}, sizes=(1,), interval=_padded, wraps=True),
    Operator("Trilu", same_type, _trilu, steers={1: "the diagonal"}, wraps=True),
    Operator(
        "CenterCropPad",
        lambda node, inputs: ((required(node, inputs, 0).dtype, _crop_shape(node, inputs)),),
        _crop,
        steers={1: "the shape"},
        wraps=True,
    ),
)
