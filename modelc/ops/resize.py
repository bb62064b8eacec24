"""Resize: nearest as a quasi-affine index, linear and cubic as a contraction with small tables of weights."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer, Iter
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
    fail,
    fold,
    grid,
    names,
    normal_axes,
    point,
    required,
    steering_data,
    text,
)

Array = NDArray[Any]
MOST_WEIGHTS = 1 << 23  # of one dimension: tables of them are made when compiling


@dataclass(frozen=True)
class Axis:
    """One resized dimension: extents, scale (output over input), and the part of the input that is resized."""

    input: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def resized(node: Node, inputs: Inputs) -> dict[int, Axis]:
    """The resized dimensions. Raises ModelError if scales and sizes do not fit."""
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axes = normal_axes(node, node.attrs.get("axes") or range(rank), rank)
    roi, scales, sizes = (steering_data(node, inputs, k, what) for k, what in ((1, "roi"), (2, "scales"), (3, "sizes")))
    extents = [x.shape[a] for a in axes]
    if sizes is not None and sizes.size:
        wanted = [int(n) for n in sizes]
        if len(wanted) != len(axes):
            fail(node, f"expected {len(axes)} sizes, found {wanted}")
        if any(n and not m for n, m in zip(wanted, extents, strict=True)):
            fail(node, f"expected elements to resize to {wanted}, found {extents}")
        factors = [n / m if m else 1.0 for n, m in zip(wanted, extents, strict=True)]
        policy = text(node, "keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            wanted = [floor(factor * m + 0.5) for m in extents]
    elif scales is not None and scales.size == len(axes):
        factors = _finite(node, "scales", scales)
        wanted = [floor(s * m) for s, m in zip(factors, extents, strict=True)]
    else:
        fail(node, f"expected scales or sizes for {len(axes)} dimensions, found neither")
    crop = text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    parts = [0.0] * len(axes) + [1.0] * len(axes)
    if crop and roi is not None and roi.size:
        parts = _finite(node, "roi", roi)
        if len(parts) != 2 * len(axes):
            fail(node, f"expected {2 * len(axes)} numbers as roi, found {len(parts)}")
    result = {}
    for k, a in enumerate(axes):
        start, end = parts[k], parts[k + len(axes)]
        if wanted[k] != extents[k] or factors[k] != 1.0 or (crop and (start, end) != (0.0, 1.0)):
            if wanted[k] > MOST_WEIGHTS:
                fail(node, f"expected a dimension of at most {MOST_WEIGHTS} (MOST_WEIGHTS), found {wanted[k]}")
            result[a] = Axis(extents[k], wanted[k], factors[k], start, end)
    return result


def _finite(node: Node, what: str, numbers: Array) -> list[float]:
    if not np.isfinite(numbers).all():
        fail(node, f"expected finite numbers as {what}, found {numbers.tolist()}")
    return [float(v) for v in numbers.reshape(-1)]


def coordinates(node: Node, axis: Axis) -> Array:
    """Where each output position lies in the input. In float32 like ONNX Runtime, so that ties round alike."""
    mode = text(node, "coordinate_transformation_mode", "half_pixel")
    x, n, m = np.arange(axis.output, dtype=np.float32), axis.input, axis.output
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and m > 1):
        return np.asarray((x + np.float32(0.5)) / np.float32(axis.scale) - np.float32(0.5))
    if mode == "pytorch_half_pixel":
        return x * 0
    if mode == "half_pixel_symmetric":
        scale, one = np.float32(axis.scale), np.float32(1)
        offset = np.float32(n / 2) * (one - m / (scale * np.float32(n)))
        return np.asarray(offset + (x + np.float32(0.5)) / scale - np.float32(0.5))
    if mode == "align_corners":
        return x * (n - 1) / (m - 1) if m > 1 else x * 0
    if mode == "asymmetric":
        return np.asarray(x / np.float32(axis.scale))
    if mode == "tf_crop_and_resize":
        if m > 1:
            return axis.start * (n - 1) + x * (axis.end - axis.start) * (n - 1) / (m - 1)
        return x + 0.5 * (axis.start + axis.end) * (n - 1)
    fail(node, f"expected a known coordinate_transformation_mode, found {mode!r}")


# --- nearest ------------------------------------------------------------------------------------------------------


def nearest(node: Node, axis: Axis) -> Array:
    """The input position that each output position takes."""
    x = coordinates(node, axis)
    mode = text(node, "nearest_mode", "round_prefer_floor")
    rounding = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }
    if mode not in rounding:
        fail(node, f"expected nearest_mode among {', '.join(rounding)}, found {mode!r}")
    return np.clip(rounding[mode](), 0, axis.input - 1).astype(np.int64)


def affine_index(positions: Array, at: Expr, extent: int) -> Expr | None:
    """`(a*at + b) // c`, clamped to the dimension if need be, that gives `positions`; None if there is no such form
    with small numbers."""
    o = np.arange(len(positions))
    if len(positions) == 1:
        return Const(int(positions[0]))
    slopes = [Fraction(extent, len(positions)), Fraction(int(positions[-1] - positions[0]), len(positions) - 1)]
    for slope in dict.fromkeys(s.limit_denominator(64) for s in slopes):
        for scale in (1, 2, 4):
            a, c = slope.numerator * scale, slope.denominator * scale
            low, high = positions * c - a * o, (positions + 1) * c - a * o - 1  # low <= b <= high, exactly
            for clamped in (False, True):
                least = int(low[positions > 0].max(initial=low[-1]) if clamped else low.max())
                most = int(high[positions < extent - 1].min(initial=high[0]) if clamped else high.min())
                if least > most:
                    continue
                b = min(max(0, least), most)
                index = (at * a + b) // c
                values = (o * a + b) // c
                if values.min() < 0:
                    index = op("max", index, 0)
                if values.max() >= extent:
                    index = op("min", index, extent - 1)
                return index if (np.clip(values, 0, extent - 1) == positions).all() else None
    return None


# --- linear and cubic ---------------------------------------------------------------------------------------------


def _linear_weight(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic_weight(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def taps(node: Node, axis: Axis) -> tuple[Array, Array]:
    """Input positions and weights of every output position: two arrays of shape (output, taps)."""
    cubic = text(node, "mode", "nearest") == "cubic"
    reach = 2 if cubic else 1
    shrink = min(axis.scale, 1.0) if node.attrs.get("antialias", 0) else 1.0
    if axis.output * 2 * reach > MOST_WEIGHTS * shrink:
        fail(node, f"expected at most {MOST_WEIGHTS} weights (MOST_WEIGHTS) for {axis.output} positions")
    first = floor(-reach / shrink) + 1
    offsets = np.arange(first, 2 - first if shrink < 1.0 else reach + 1)
    x = coordinates(node, axis)
    positions = np.floor(x)[:, None] + offsets
    distance = (positions - x[:, None]) * shrink
    weights = _cubic_weight(distance, node.attrs.get("cubic_coeff_a", -0.75)) if cubic else _linear_weight(distance)
    if node.attrs.get("exclude_outside", 0):
        weights = np.where((positions >= 0) & (positions < axis.input), weights, 0.0)
    if shrink < 1.0 or node.attrs.get("exclude_outside", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(positions, 0, axis.input - 1).astype(np.int64), weights


# --- the operator -------------------------------------------------------------------------------------------------


def _infer(node: Node, inputs: Inputs) -> Types:
    x, axes = required(node, inputs, 0), resized(node, inputs)
    return ((x.dtype, tuple(axes[k].output if k in axes else n for k, n in enumerate(x.shape))),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, axes = required(node, inputs, 0), resized(node, inputs)
    ((dtype, shape),) = _infer(node, inputs)
    mode = text(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        fail(node, f"expected mode nearest, linear or cubic, found {mode!r}")
    over = point(names(len(shape)))
    if mode == "nearest":
        definition, value = _nearest(node, axes, over)
    else:
        definition, value = _weighted(node, x, axes, over, shape)
    constants = list(definition.constants)
    if text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        for k, axis in axes.items():
            at = coordinates(node, axis)
            inside = (at >= 0) & (at <= axis.input - 1)
            if inside.all():
                continue
            name = f"inside_{over[k].name}"
            constants.append((Buffer(name, "bool", inside.shape), inside))
            outside = const(node.attrs.get("extrapolation_value", 0.0), dtype)
            value = select(Load(name, (over[k],)), value, outside)
    last = assign("resize", grid(shape), Load("y0", over), value)
    return Definition(definition.locals, (*definition.blocks, last), tuple(constants))


def _nearest(node: Node, axes: dict[int, Axis], over: tuple[Var, ...]) -> tuple[Definition, Expr]:
    at, constants = list[Expr](over), []
    for k, axis in axes.items():
        positions = nearest(node, axis)
        index = affine_index(positions, over[k], axis.input)
        if index is None:
            name = f"at_{over[k].name}"
            constants.append((Buffer(name, "int64", positions.shape), positions))
            index = Load(name, (over[k],))
        at[k] = index
    return Definition((), (), tuple(constants)), Load("x0", tuple(at))


def _weighted(
    node: Node, x: Value, axes: dict[int, Axis], over: tuple[Var, ...], shape: Shape
) -> tuple[Definition, Expr]:
    """Blocks that sum the taps into `sum`, and its element as the output's dtype."""
    wide = accumulator(x.dtype) if x.dtype in FLOATS else "float32"
    at, reducing, constants = list[Expr](over), [], []
    weight: Expr | None = None
    for k, axis in axes.items():
        positions, weights = taps(node, axis)
        tap = Var(f"{over[k].name}t")
        reducing.append(Iter(tap.name, positions.shape[1], True))
        for name, table in ((f"at_{over[k].name}", positions), (f"weight_{over[k].name}", weights)):
            dtype = "int64" if table is positions else wide
            constants.append((Buffer(name, dtype, table.shape), table.astype(dtype)))
        at[k] = Load(f"at_{over[k].name}", (over[k], tap))
        each = Load(f"weight_{over[k].name}", (over[k], tap))
        weight = each if weight is None else weight * each
    body: Expr = Load("x0", tuple(at))
    body = body if x.dtype == wide else cast(wide, body)
    if weight is None:
        return Definition(), Load("x0", over)
    block = fold("add", "taps", (*grid(shape), *reducing), Load("sum", over), body * weight)
    total: Expr = Load("sum", over)
    total = total if x.dtype == wide else cast(x.dtype, total)
    return Definition((Buffer("sum", wide, shape),), (block,), tuple(constants)), total


OPERATORS = (Operator("Resize", _infer, _define, steers={1: "the roi", 2: "the scales", 3: "the sizes"}),)
