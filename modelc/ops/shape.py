"""What depends on shapes and attributes alone: constants, sequences of numbers, windows."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer
from modelc.ir.expr import DTYPES, Const, Expr, Load, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    assign,
    fail,
    grid,
    known_ints,
    known_scalar,
    names,
    point,
    required,
)

Outputs = tuple[Value | None, ...]


LONGEST_WINDOW = 1 << 20  # of a cosine: it is a constant


def table(name: str, values: Callable[[Node, Inputs], NDArray[np.generic]], **facts: Any) -> Operator:
    """An operator whose output is known when compiling."""

    def infer(node: Node, inputs: Inputs) -> Types:
        constant = values(node, inputs)
        return ((constant.dtype.name, constant.shape),)

    def define(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
        constant = values(node, inputs)
        over = point(names(constant.ndim))
        if constant.ndim == 0:
            return Definition((), (assign(name.lower(), (), Load("y0", ()), const(constant, constant.dtype.name)),))
        block = assign(name.lower(), grid(constant.shape), Load("y0", over), Load("table", over))
        return Definition((), (block,), ((Buffer("table", constant.dtype.name, constant.shape), constant),))

    return Operator(name, infer, define, **facts)


def _shape(node: Node, inputs: Inputs) -> NDArray[np.generic]:
    shape = required(node, inputs, 0).shape
    return np.asarray(shape[slice(node.attrs.get("start", 0), node.attrs.get("end"))], np.int64)


def _size(node: Node, inputs: Inputs) -> NDArray[np.generic]:
    return np.asarray(np.prod(required(node, inputs, 0).shape, dtype=np.int64))


def _window(first: float, second: float) -> Callable[[Node, Inputs], NDArray[np.generic]]:
    """Generalised cosine windows: `first - (1 - first - second) cos + second cos`."""

    def values(node: Node, inputs: Inputs) -> NDArray[np.generic]:
        size = known_ints(node, inputs, 0, "size")
        assert size is not None
        if not 0 <= size[0] <= LONGEST_WINDOW:
            fail(node, f"expected a size of 0 to {LONGEST_WINDOW} (LONGEST_WINDOW), found {size[0]}")
        dtype = node.attrs.get("output_datatype", 1)
        to = {1: "float32", 11: "float64", 10: "float16", 16: "bfloat16"}.get(dtype, dtype)
        n = size[0] if node.attrs.get("periodic", 1) else size[0] - 1
        angle = 2 * np.pi * np.arange(size[0]) / n
        return np.asarray(first - (1 - first - second) * np.cos(angle) + second * np.cos(2 * angle), DTYPES[to])

    return values


# --- computed from the iterators -----------------------------------------------------------------------------------


def _filled_infer(node: Node, inputs: Inputs) -> Types:
    shape, value = known_ints(node, inputs, 0, "shape"), node.attrs.get("value")
    if shape is None:
        fail(node, "expected a shape, found none")
    return (("float32" if value is None else np.asarray(value).dtype.name, shape),)


def _filled(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    ((dtype, shape),) = _filled_infer(node, inputs)
    value = const(np.asarray(node.attrs.get("value", 0.0)).reshape(-1)[0], dtype)
    return Definition((), (assign("fill", grid(shape), Load("y0", point(names(len(shape)))), value),))


def _range_infer(node: Node, inputs: Inputs) -> Types:
    start, limit, delta = (known_scalar(node, inputs, k, what) for k, what in enumerate(("start", "limit", "delta")))
    assert start is not None and limit is not None and delta is not None
    if not delta:
        fail(node, "expected a delta other than zero, found zero")
    first, last, step = (v.item() for v in (start, limit, delta))
    if not isfinite((last - first) / step):
        fail(node, f"expected numbers between which steps can be counted, found {first} to {last} by {step}")
    return ((required(node, inputs, 0).dtype, (max(ceil((last - first) / step), 0),)),)


def _range(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    ((dtype, shape),) = _range_infer(node, inputs)
    start, delta = (const(required(node, inputs, k).data.reshape(()), dtype) for k in (0, 2))  # type: ignore[union-attr]
    (i,) = point(names(1))
    body: Expr = (i if dtype == "int64" else cast(dtype, i)) * delta + start
    return Definition((), (assign("range", grid(shape), Load("y0", (i,)), body),))


def _eye_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    return ((node.attrs.get("dtype") or x.dtype, x.shape),)


def _eye(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    ((dtype, shape),) = _eye_infer(node, inputs)
    m, n = point(names(2))
    diagonal = op("eq", n - m, Const(int(node.attrs.get("k", 0))))
    body = diagonal if dtype == "bool" else cast(dtype, diagonal)
    return Definition((), (assign("eye", grid(shape), Load("y0", (m, n)), body),))


SIZE = {0: "the size"}
OPERATORS = (
    table("Shape", _shape),
    table("Size", _size),
    table("HannWindow", _window(0.5, 0.0), steers=SIZE),
    table("HammingWindow", _window(25 / 46, 0.0), steers=SIZE),
    table("BlackmanWindow", _window(0.42, 0.08), steers=SIZE),
    Operator("ConstantOfShape", _filled_infer, _filled, steers=SIZE, sizes=(0,)),
    Operator("Range", _range_infer, _range, steers={0: "the start", 1: "the limit", 2: "the delta"}, sizes=(0, 1, 2)),
    Operator("EyeLike", _eye_infer, _eye),
)
