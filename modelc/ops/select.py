"""Operators without an affine form: sorting and scattering, as opaque Blocks."""

from __future__ import annotations

from modelc.ir.block import OpaqueBlock
from modelc.ir.graph import Node, Value
from modelc.ops.opaque import index_ranges
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    axis_of,
    check_known,
    fail,
    known_ints,
    required,
    same_type,
    text,
)

Outputs = tuple[Value | None, ...]


def _topk_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    axis, k = axis_of(node, len(x.shape), -1), known_ints(node, inputs, 1, "k")
    if k is None or not 0 <= k[0] <= x.shape[axis]:
        fail(node, f"expected k of at most {x.shape[axis]}, found {k}")
    shape = (*x.shape[:axis], k[0], *x.shape[axis + 1 :])
    return ((x.dtype, shape), ("int64", shape))[: len(node.outputs)]


def _topk(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    rank = len(required(node, inputs, 0).shape)
    axis = axis_of(node, rank, -1)
    shape = _topk_infer(node, inputs)[0][1]
    attrs = (("axis", axis), ("k", shape[axis]), ("largest", bool(node.attrs.get("largest", 1))))
    return Definition((), (OpaqueBlock("topk", "topk", ("x0",), ("y0", "y1")[: len(node.outputs)], attrs),))


def _scatter(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    reduction = text(node, "reduction", "none")
    if reduction not in ("none", "add", "mul", "max", "min"):
        fail(node, f"expected reduction none, add, mul, max or min, found {reduction!r}")
    attrs: tuple[tuple[str, object], ...] = (("reduction", reduction),)
    x, indices = required(node, inputs, 0), required(node, inputs, 1)
    attrs = attrs if node.op == "ScatterND" else (("axis", axis_of(node, len(x.shape))), *attrs)
    meaning = "scatter_nd" if node.op == "ScatterND" else "scatter_elements"
    block = OpaqueBlock("scatter", meaning, ("x0", "x1", "x2"), ("y0",), attrs)
    for _, column, low, high in index_ranges(block, {"x0": x.shape, "x1": indices.shape}):
        known = indices.data if column is None or indices.data is None else indices.data[..., column]
        check_known(node, indices, known, low, high)
    return Definition((), (block,))


OPERATORS = (
    Operator("TopK", _topk_infer, _topk),
    Operator("ScatterND", same_type, _scatter),
    Operator("ScatterElements", same_type, _scatter),
    Operator("Scatter", same_type, _scatter),
)
