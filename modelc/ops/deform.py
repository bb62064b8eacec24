"""Deformable convolution: every tap of the kernel is sampled at a place that data moves, then a contraction."""

from __future__ import annotations

from modelc.ir.block import AnyBlock, Buffer, Iter
from modelc.ir.expr import Expr, Load, Var, cast, conjunction, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.conv import conv_geometry, finished
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    accumulator,
    assign,
    fail,
    fold,
    given,
    grid,
    point,
    required,
    widened,
)

FAR = 1 << 20  # outside of any image: positions are clamped there before they become whole numbers


def _infer(node: Node, inputs: Inputs) -> Types:
    x, w, offset = (required(node, inputs, k) for k in range(3))
    if len(x.shape) != 4 or max(x.shape) >= FAR:
        fail(node, f"expected images of two dimensions below {FAR}, found {list(x.shape)}")
    win, _ = conv_geometry(node, x, w)
    groups = int(node.attrs.get("offset_group", 1))
    if groups < 1 or x.shape[1] % groups:
        fail(node, f"expected offset_group to divide {x.shape[1]} channels, found {groups}")
    taps = groups * win.kernel[0] * win.kernel[1]
    for value, count, what in ((offset, 2 * taps, "offsets"), (given(inputs, 4), taps, "a mask")):
        if value is not None and value.shape != (x.shape[0], count, *win.output):
            fail(node, f"expected {what} of {[x.shape[0], count, *win.output]}, found {list(value.shape)}")
    bias = given(inputs, 3)
    if bias is not None and bias.shape != (w.shape[0],):
        fail(node, f"expected a bias of {w.shape[0]} elements, found {list(bias.shape)}")
    return ((x.dtype, (x.shape[0], w.shape[0], *win.output)),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, w, mask = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 4)
    ((dtype, output),) = _infer(node, inputs)
    win, groups = conv_geometry(node, x, w)
    t, each = accumulator(dtype), x.shape[1] // int(node.attrs.get("offset_group", 1))
    extents = (x.shape[0], x.shape[1], *win.kernel, *win.output)
    iters, over = grid(extents, ("n", "c", "r", "s", "h", "w")), point(("n", "c", "r", "s", "h", "w"))
    tap = (Var("c") // each * win.kernel[0] + Var("r")) * win.kernel[1] + Var("s")
    blocks: list[AnyBlock] = []
    base: list[Expr] = []
    inside: list[Expr] = []
    weight: Expr | None = None
    for k, (at, kernel, corner) in enumerate((("h", "r", "p"), ("w", "s", "q"))):
        moved = widened(Load("x2", (Var("n"), tap * 2 + k, Var("h"), Var("w"))), dtype, t)
        start = Var(at) * win.strides[k] - win.before[k] + Var(kernel) * win.dilations[k]
        position = op("min", op("max", moved + cast(t, start), const(-FAR, t)), const(FAR, t))
        low = op("floor", position)
        place = cast("int64", low) + Var(corner)
        share = position - low
        near = select(op("eq", Var(corner), 0), const(1, t) - share, share)
        weight = near if weight is None else weight * near
        inside += [op("ge", place, 0), op("lt", place, win.input[k])]
        base.append(op("min", op("max", place, 0), win.input[k] - 1))
    assert weight is not None
    value = widened(Load("x0", (Var("n"), Var("c"), *base)), dtype, t)
    sampled = select(conjunction(tuple(inside)), value, const(0, t)) * weight
    corners = (Iter("p", 2, True), Iter("q", 2, True))
    blocks.append(fold("add", "sample", (*iters, *corners), Load("sampled", over), sampled))
    locals_ = [Buffer("sampled", t, extents)]
    column = "sampled"
    if mask is not None:
        factor = widened(Load("x4", (Var("n"), tap, Var("h"), Var("w"))), dtype, t)
        blocks.append(assign("mask", iters, Load("masked", over), Load("sampled", over) * factor))
        locals_.append(Buffer("masked", t, extents))
        column = "masked"
    per_group, channels = w.shape[0] // groups, w.shape[1]
    reduced = (Iter("c", channels, True), Iter("r", win.kernel[0], True), Iter("s", win.kernel[1], True))
    outer = grid((x.shape[0], groups, per_group, *win.output), ("n", "g", "o", "h", "w"))
    channel, written = Var("g") * channels + Var("c"), Var("g") * per_group + Var("o")
    read = Load(column, (Var("n"), channel, Var("r"), Var("s"), Var("h"), Var("w")))
    weights = widened(Load("x1", (written, Var("c"), Var("r"), Var("s"))), dtype, t)
    contraction = fold(
        "add", "conv", (*outer, *reduced), Load("sum", (Var("n"), written, Var("h"), Var("w"))), read * weights
    )
    end = finished(contraction, output, dtype, t, given(inputs, 3) is not None, 3)
    return Definition((*locals_, *end.locals), (*blocks, *end.blocks))


OPERATORS = (Operator("DeformConv", _infer, _define),)
