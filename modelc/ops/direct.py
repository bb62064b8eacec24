"""Constants computed: by NumPy alone where it does just what an operator means, and does it much sooner than the
interpreter of Blocks, which defines a node before it runs it; by that interpreter otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.arithmetic import converted
from modelc.ir.expr import DTYPES, FLOATS
from modelc.ir.graph import Node
from modelc.ops.evaluate import evaluate_node
from modelc.ops.operator import Inputs

Array = NDArray[Any]
QUANTIZED = ("int8", "uint8", "int16", "uint16", "int32")
NUMBERS = ("int32", "int64", "float32", "float64")


def _reshaped(node: Node, x: Array, shape: Array) -> Array:
    return x.reshape(tuple(shape.tolist()))


def _transposed(node: Node, x: Array) -> Array:
    return np.transpose(x, node.attrs.get("perm"))


def _concatenated(node: Node, *parts: Array) -> Array:
    return np.concatenate(parts, node.attrs["axis"])


def _gathered(node: Node, x: Array, indices: Array) -> Array | None:
    axis = int(node.attrs.get("axis", 0))
    extent = x.shape[axis]
    return x.take(indices, axis) if ((indices >= -extent) & (indices < extent)).all() else None


def _cast(node: Node, x: Array) -> Array | None:
    to = node.attrs["to"]
    return converted(x, DTYPES[to]) if to in NUMBERS and x.dtype.name in NUMBERS else None


def _cumulated(node: Node, x: Array, axis: Array) -> Array:
    """In one walk, where Blocks add all that comes before to every element."""
    if not x.size:
        return x
    along = int(axis.reshape(-1)[0])
    given = np.flip(x, along) if node.attrs.get("reverse", 0) else x
    total = np.cumsum(given, along, np.float64 if x.dtype.name in FLOATS else x.dtype)
    if node.attrs.get("exclusive", 0):
        first = np.zeros_like(total.take([0], along))
        total = np.concatenate((first, total.take(range(x.shape[along] - 1), along)), along)
    return (np.flip(total, along) if node.attrs.get("reverse", 0) else total).astype(x.dtype)


def _dequantized(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array | None:
    """In float32, with one scale for all, for each index of an axis, or for each block along it."""
    plain = x.dtype.name in QUANTIZED and scale.dtype == np.float32
    if not plain or node.attrs.get("output_dtype") not in (None, 0, "", "float32"):
        return None
    axis, block = int(node.attrs.get("axis", 1)), int(node.attrs.get("block_size", 0))

    def over(parameter: Array) -> Array:
        if parameter.size == 1:
            return parameter.reshape(())
        if block:
            return np.repeat(parameter, block, axis).take(range(x.shape[axis]), axis)
        return parameter.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])

    whole = x.astype(np.int32)
    whole = whole if zero is None else whole - over(zero.astype(np.int32))
    return whole.astype(np.float32) * over(scale)


# Each gives None where NumPy does otherwise than the operator.
DIRECT: dict[str, Callable[..., Array | None]] = {
    "Reshape": _reshaped,
    "Transpose": _transposed,
    "Identity": lambda node, x: x,
    "Concat": _concatenated,
    "Gather": _gathered,
    "Cast": _cast,
    "CumSum": _cumulated,
    "DequantizeLinear": _dequantized,
}


@np.errstate(all="ignore")
def computed(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """What `node` computes on constants, as its Blocks say: bit for bit but for the order of additions in float64."""
    if node.op in DIRECT:
        array = DIRECT[node.op](node, *(v.data for v in inputs if v is not None))
        if array is not None:
            return (array,)
    return evaluate_node(node, inputs)
