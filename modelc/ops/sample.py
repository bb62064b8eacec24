"""Sampling at computed coordinates: GridSample."""

from __future__ import annotations

from modelc.ir.block import AnyBlock, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    accumulator,
    assign,
    fail,
    fold,
    grid,
    point,
    required,
    text,
    widened,
)
from modelc.ops.window import SPACE, TAPS, spatial_rank

WHOLE = 2.0**62  # positions beyond are no whole numbers of 64 bits
EXACT = 2**22  # up to here a float32 tells positions and their fractions apart
REACH = 4  # farther outside no tap reads another element
_MODES = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4, "nearest": 1}


def _infer(node: Node, inputs: Inputs) -> Types:
    x, at = required(node, inputs, 0), required(node, inputs, 1)
    rank = spatial_rank(node, len(x.shape))
    if len(at.shape) != rank + 2 or at.shape[-1] != rank or at.shape[0] != x.shape[0]:
        fail(node, f"expected a grid of {x.shape[0]} maps to {rank} coordinates, found {list(at.shape)}")
    if text(node, "mode", "linear") not in _MODES:
        fail(node, f"expected mode among {', '.join(_MODES)}, found {text(node, 'mode', 'linear')!r}")
    padding = text(node, "padding_mode", "zeros")
    if padding not in ("zeros", "border", "reflection"):
        fail(node, f"expected padding_mode zeros, border or reflection, found {padding!r}")
    return ((x.dtype, (*x.shape[:2], *at.shape[1:-1])),)


def _position(e: Expr, n: int, corners: bool, t: str) -> Expr:
    """A coordinate in [-1, 1] as a position among `n` elements."""
    one, half = const(1, t), const(0.5, t)
    return (e + one) * half * const(n - 1, t) if corners else ((e + one) * const(n, t) - one) * half


def _usable(position: Expr, n: int, corners: bool, padding: str, t: str) -> Expr:
    """A position near the `n` elements that reads what `position` does: where that is NaN or beyond all whole numbers,
    the one of coordinate -1, as in ONNX Runtime; past EXACT a reflection is where it is at EXACT."""
    first, last = (-EXACT, EXACT) if padding == "reflection" else (-REACH, n - 1 + REACH)
    near = op("min", op("max", position, const(first, t)), const(last, t))
    whole = op("and", op("ge", position, const(-WHOLE, t)), op("le", position, const(WHOLE, t)))
    return select(whole, near, const(0 if corners else -0.5, t))


def _tap(i: Expr, n: int, corners: bool, padding: str) -> Expr:
    """The element that the whole-number position `i` reads, or would if it were there."""
    if padding == "reflection" and n > 1:
        period = 2 * (n - 1) if corners else 2 * n
        lap = i % period
        i = op("min", lap, (period if corners else period - 1) - lap)
    return op("min", op("max", i, 0), n - 1)


def _weight(distance: Expr, taps: int, t: str) -> Expr:
    """Linear or cubic (Keys, a = -0.75) interpolation."""
    d = op("abs", distance)
    one = const(1, t)
    if taps == 2:
        return one - d
    a = -0.75
    near = (const(a + 2, t) * d - const(a + 3, t)) * d * d + one
    far = ((const(a, t) * d - const(5 * a, t)) * d + const(8 * a, t)) * d - const(4 * a, t)
    return select(op("le", d, one), near, far)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, coordinates = required(node, inputs, 0), required(node, inputs, 1)
    ((dtype, shape),) = _infer(node, inputs)
    rank, t = len(shape) - 2, accumulator(dtype)
    space, taps = SPACE[rank], _MODES[text(node, "mode", "linear")]
    corners, padding = bool(node.attrs.get("align_corners", 0)), text(node, "padding_mode", "zeros")
    iters, over = grid(shape, ("n", "c", *space)), point(("n", "c", *space))
    place = (over[0], *over[2:])
    outer = (iters[0], *iters[2:])
    blocks: list[AnyBlock] = []
    locals_: list[Buffer] = []
    for k, name in enumerate(space):
        read = widened(Load("x1", (*place, Const(rank - 1 - k))), coordinates.dtype, t)
        body = _usable(_position(read, x.shape[2 + k], corners, t), x.shape[2 + k], corners, padding, t)
        if taps == 1:
            body = op("round", body)
        locals_.append(Buffer(f"at_{name}", t, (shape[0], *shape[2:])))
        blocks.append(assign(f"at_{name}", outer, Load(f"at_{name}", place), body))
    at: list[Expr] = []
    inside: list[Expr] = []
    weight: Expr | None = None
    for k, name in enumerate(space):
        position, n = Load(f"at_{name}", place), x.shape[2 + k]
        base = cast("int64", op("floor", position))
        if taps > 1:
            base = base + Var(TAPS[rank][k]) - (taps // 2 - 1)
            each = _weight(position - cast(t, base), taps, t)
            weight = each if weight is None else weight * each
        at.append(_tap(base, n, corners, padding))
        if padding == "zeros":
            inside += [op("ge", base, 0), op("lt", base, n)]
    value = widened(Load("x0", (over[0], over[1], *at)), dtype, t)
    if inside:
        condition = inside[0]
        for c in inside[1:]:
            condition = op("and", condition, c)
        value = select(condition, value, const(0, t))
    if weight is None:
        blocks.append(assign("sample", iters, Load("y0", over), widened(value, t, dtype)))
        return Definition(tuple(locals_), tuple(blocks))
    reducing = tuple(Iter(tap, taps, True) for tap in TAPS[rank])
    direct = t == dtype
    write = Load("y0" if direct else "sum", over)
    blocks.append(fold("add", "sample", (*iters, *reducing), write, value * weight))
    if not direct:
        locals_.append(Buffer("sum", t, shape))
        blocks.append(assign("round", iters, Load("y0", over), cast(dtype, write)))
    return Definition(tuple(locals_), tuple(blocks))


OPERATORS = (Operator("GridSample", _infer, _define),)
