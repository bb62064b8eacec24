"""Computes what depends on constants alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph, Node, Value
from modelc.ops import evaluate_node

Array = NDArray[Any]
KEPT = {"DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear"}  # constants are better kept quantised


@dataclass(frozen=True)
class FoldConstants:
    """`limit`: elements of a folded output, at most, if it is larger than what it is computed from (so that Expand of
    a number stays an Expand). `dequantize`: whether quantized constants become real ones (1), which is for those that
    no contraction of whole numbers has taken."""

    limit: int = 1 << 16
    dequantize: int = 0

    def __call__(self, graph: Graph) -> Graph:
        values, outputs = dict(graph.values), frozenset(graph.outputs)
        readers = Counter(x for node in graph.nodes for x in dict.fromkeys(node.inputs))
        kept: list[Node] = []
        folded: dict[str, Value] = {}
        count = 0
        for node in graph.nodes:
            inputs = tuple(values[x] if x else None for x in node.inputs)
            if not outputs.isdisjoint(node.outputs) or not self._folds(node, inputs, values):
                kept.append(node)
                continue
            count += 1
            for name, data in zip(node.outputs, _computed(node, inputs), strict=False):
                if name:
                    shape = values[name].shape
                    value = Value(name, values[name].dtype, shape, np.asarray(data, order="C").reshape(shape))
                    values[name] = folded[name] = value
            for name in dict.fromkeys(node.inputs):
                readers[name] -= 1
                if not readers[name] and name in folded:  # large ones would add up along a chain
                    del folded[name]
                    values[name] = graph.values[name]
        return graph.with_nodes(kept, folded.values()) if count else graph

    def _folds(self, node: Node, inputs: tuple[Value | None, ...], values: dict[str, Value]) -> bool:
        kept = node.op in KEPT and not (self.dequantize and node.op == "DequantizeLinear")
        if kept or node.bodies:
            return False
        if any(v is not None and v.data is None for v in inputs):
            return False
        read = sum(prod(v.shape) for v in inputs if v is not None)
        return sum(prod(values[out].shape) for out in node.outputs if out) <= max(self.limit, read)


def _reshaped(node: Node, x: Array, shape: Array) -> Array:
    return x.reshape(tuple(shape.tolist()))


def _transposed(node: Node, x: Array) -> Array:
    return np.transpose(x, node.attrs.get("perm"))


def _dequantized(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """In float32, with one scale for all, for each index of an axis, or for each block along it."""
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


# What is done to large weights, which NumPy does at once and the interpreter of Blocks element by element.
DIRECT: dict[str, Callable[..., Array]] = {
    "Reshape": _reshaped,
    "Transpose": _transposed,
    "Identity": lambda node, x: x,
    "DequantizeLinear": _dequantized,
}


def _is_plain(node: Node, inputs: tuple[Value | None, ...]) -> bool:
    """Whether NumPy does just what the operator means."""
    if node.op != "DequantizeLinear":
        return True
    x, scale = inputs[0], inputs[1]
    assert x is not None and scale is not None
    return (
        x.dtype in ("int8", "uint8", "int16", "uint16", "int32")
        and scale.dtype == "float32"
        and (node.attrs.get("output_dtype") in (None, 0, "", "float32"))
    )


def _computed(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Array, ...]:
    if node.op in DIRECT and _is_plain(node, inputs):
        return (DIRECT[node.op](node, *(v.data for v in inputs if v is not None)),)
    return evaluate_node(node, inputs)
