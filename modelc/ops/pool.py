"""Pooling: reductions over windows."""

from __future__ import annotations

from math import prod

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    assign,
    fail,
    fold,
    grid,
    ints,
    point,
    required,
    tidy,
    widened,
    within,
)
from modelc.ops.window import SPACE, TAPS, Window, spatial_rank, window


def _geometry(node: Node, inputs: Inputs) -> tuple[Window, Shape]:
    """The window and the output's shape."""
    x = required(node, inputs, 0)
    rank = spatial_rank(node, len(x.shape))
    if "kernel_shape" not in node.attrs:
        fail(node, "expected the attribute kernel_shape, found none")
    win = window(node, x.shape[2:], ints(node, "kernel_shape", [1] * rank))
    return win, (*x.shape[:2], *win.output)


def _infer(node: Node, inputs: Inputs) -> Types:
    dtype = required(node, inputs, 0).dtype
    shape = _geometry(node, inputs)[1]
    return ((dtype, shape), ("int64", shape))[: len(node.outputs)]


def _sliding(x: Value, win: Window) -> tuple[tuple[Iter, ...], tuple[Expr, ...], list[Expr], tuple[Expr, ...]]:
    """Iterators, the indices read, the conditions that keep them inside, the indices written."""
    rank = len(win.kernel)
    space, taps = SPACE[rank], TAPS[rank]
    iters = (
        *grid((*x.shape[:2], *win.output), ("n", "c", *space)),
        *(Iter(t, e, True) for t, e in zip(taps, win.kernel, strict=True)),
    )
    ranges = {i.name: i.extent for i in iters}
    at = [tidy(win.index(k, a, t), iters) for k, (a, t) in enumerate(zip(space, taps, strict=True))]
    where = [c for index, extent in zip(at, win.input, strict=True) for c in within(index, extent, ranges)]
    return iters, (Var("n"), Var("c"), *at), where, point(("n", "c", *space))


def _max(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    win, _ = _geometry(node, inputs)
    iters, at, where, over = _sliding(x, win)
    body = Load("x0", at)
    if len(outputs) < 2 or outputs[1] is None:
        return Definition((), (fold("max", "maxpool", iters, Load("y0", over), body, where),))
    space = win.input[::-1] if node.attrs.get("storage_order", 0) else win.input
    positions = at[2:][::-1] if node.attrs.get("storage_order", 0) else at[2:]
    flat: Expr = Var("n") * x.shape[1] + Var("c")
    for index, extent in zip(positions, space, strict=True):
        flat = flat * extent + index
    block = Block("maxpool", iters, (Load("y0", over), Load("y1", over)), (body, flat), "argmax", tuple(where))
    return Definition((), (block,))


def _count(win: Window, k: int, at: str, padded: bool) -> Expr | int:
    """How many taps of dimension `k` count at output position `at`: those inside the input, or (`padded`) inside the
    padded input."""
    stride, dilation, kernel = win.strides[k], win.dilations[k], win.kernel[k]
    before = 0 if padded else win.before[k]
    extent = win.input[k] + (win.before[k] + win.after[k] if padded else 0)
    last = (win.output[k] - 1) * stride - before + (kernel - 1) * dilation
    start = Var(at) * stride - before
    count: Expr = Const(kernel)
    if last >= extent:
        count = op("min", (extent - start + (dilation - 1)) // dilation, kernel)
    if before > 0:
        count = count - op("max", ((dilation - 1) - start) // dilation, 0)
    return kernel if isinstance(count, Const) else count


def _average(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    win, shape = _geometry(node, inputs)
    iters, at, where, over = _sliding(x, win)
    wide = accumulator(x.dtype)
    summed = fold("add", "sum", iters, Load("sum", over), widened(Load("x0", at), x.dtype, wide), where)
    padded = bool(node.attrs.get("count_include_pad", 0))
    counts = [_count(win, k, at, padded) for k, at in enumerate(SPACE[len(win.kernel)])]
    fixed = prod(c for c in counts if isinstance(c, int))
    count: Expr = Const(fixed)
    for c in counts:
        count = count if isinstance(c, int) else op("mul", count, c)
    final = Load("sum", over) / cast(wide, count)
    outer = grid(shape, ("n", "c", *SPACE[len(win.kernel)]))
    block = assign("average", outer, Load("y0", over), widened(final, wide, x.dtype))
    return Definition((Buffer("sum", wide, shape),), (summed, block))


def rooted(e: Expr, p: int, dtype: str) -> Expr:
    """The `p`-th root."""
    if p == 1:
        return e
    return op("sqrt", e) if p == 2 else op("pow", e, const(1 / p, dtype))


def powered(e: Expr, p: int, dtype: str) -> Expr:
    """`|e| ** p`."""
    if p == 2:
        return e * e
    return op("abs", e) if p == 1 else op("pow", op("abs", e), const(p, dtype))


def _norm(
    x: Value, iters: tuple[Iter, ...], at: tuple[Expr, ...], where: list[Expr], final: tuple[Iter, ...], p: int
) -> Definition:
    """The p-norm over the reduced iterators, into an output over `final`."""
    wide = accumulator(x.dtype)
    outer = tuple(i for i in iters if not i.reduce)
    total = Load("sum", point(outer))
    body = powered(widened(Load("x0", at), x.dtype, wide), p, wide)
    root = assign("root", final, Load("y0", point(final)), widened(rooted(total, p, wide), wide, x.dtype))
    locals_ = (Buffer("sum", wide, tuple(i.extent for i in outer)),)
    return Definition(locals_, (fold("add", "sum", iters, total, body, where), root))


def _lp(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    iters, at, where, _ = _sliding(x, _geometry(node, inputs)[0])
    return _norm(x, iters, at, where, tuple(i for i in iters if not i.reduce), int(node.attrs.get("p", 2)))


# --- over the whole space -----------------------------------------------------------------------------------------


def _global_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    if len(x.shape) < 2:
        fail(node, f"expected a tensor of batch, channels and space, found {list(x.shape)}")
    return ((x.dtype, (*x.shape[:2], *[1] * (len(x.shape) - 2))),)


def _global(node: Node, inputs: Inputs) -> tuple[Value, tuple[Iter, ...], tuple[Expr, ...], tuple[Iter, ...]]:
    """The input, iterators over it, where they read, and iterators over the output."""
    x = required(node, inputs, 0)
    rank = len(x.shape) - 2
    named = ("n", "c", *TAPS.get(rank, tuple(f"r{k}" for k in range(rank))))
    space = SPACE.get(rank, tuple(f"i{k}" for k in range(rank)))
    final = grid((*x.shape[:2], *[1] * rank), ("n", "c", *space))
    return x, grid(x.shape, named, range(2, rank + 2)), point(named), final


def _global_max(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, iters, at, _ = _global(node, inputs)
    over = (*at[:2], *[Const(0)] * (len(x.shape) - 2))
    return Definition((), (fold("max", "max", iters, Load("y0", over), Load("x0", at)),))


def _global_average(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, iters, at, final = _global(node, inputs)
    wide = accumulator(x.dtype)
    total = Load("sum", at[:2])
    mean = widened(total / const(prod(x.shape[2:]), wide), wide, x.dtype)
    blocks = (
        fold("add", "sum", iters, total, widened(Load("x0", at), x.dtype, wide)),
        assign("average", final, Load("y0", point(final)), mean),
    )
    return Definition((Buffer("sum", wide, x.shape[:2]),), blocks)


def _global_lp(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, iters, at, final = _global(node, inputs)
    return _norm(x, iters, at, [], final, int(node.attrs.get("p", 2)))


OPERATORS = (
    Operator("MaxPool", _infer, _max, numbers="chooses"),
    Operator("AveragePool", _infer, _average),
    Operator("LpPool", _infer, _lp),
    Operator("GlobalMaxPool", _global_infer, _global_max, numbers="chooses"),
    Operator("GlobalAveragePool", _global_infer, _global_average),
    Operator("GlobalLpPool", _global_infer, _global_lp),
)
