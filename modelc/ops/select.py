"""Operators without an affine form, as opaque Blocks: sorting, scattering, regions of images, determinants."""

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
        data = indices.data if column is None or indices.data is None else indices.data[..., column]
        check_known(node, indices, data, low, high)
    return Definition((), (block,))


# --- regions of images, determinants --------------------------------------------------------------------------------

REAL = ("float32", "float64")


def _roi_infer(node: Node, inputs: Inputs) -> Types:
    x, rois, batch = (required(node, inputs, k) for k in range(3))
    if len(x.shape) != 4 or rois.shape != (*batch.shape, 4) or len(batch.shape) != 1:
        shapes = f"{list(x.shape)}, {list(rois.shape)} and {list(batch.shape)}"
        fail(node, f"expected images, regions of 4 numbers and an image's number for each, found {shapes}")
    if x.dtype not in REAL or rois.dtype != x.dtype:
        fail(node, f"expected float32 or float64, found {x.dtype}")
    if text(node, "mode", "avg") not in ("avg", "max"):
        fail(node, f"expected mode avg or max, found {text(node, 'mode', 'avg')!r}")
    size = tuple(int(node.attrs.get(name, 1)) for name in ("output_height", "output_width"))
    if min(size) < 1:
        fail(node, f"expected an output of at least one element per dimension, found {list(size)}")
    return ((x.dtype, (rois.shape[0], x.shape[1], *size)),)


def _roi(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, batch = required(node, inputs, 0), required(node, inputs, 2)
    check_known(node, batch, batch.data, 0, x.shape[0] - 1)
    half = text(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel"
    attrs = (
        ("half_pixel", half),
        ("max", text(node, "mode", "avg") == "max"),
        ("samples", int(node.attrs.get("sampling_ratio", 0))),
        ("scale", float(node.attrs.get("spatial_scale", 1.0))),
        ("shape", _roi_infer(node, inputs)[0][1]),
    )
    return Definition((), (OpaqueBlock("roi", "roi_align", ("x0", "x1", "x2"), ("y0",), attrs),))


def _det_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or x.dtype not in REAL:
        fail(node, f"expected square matrices of float32 or float64, found {x.dtype}{list(x.shape)}")
    return ((x.dtype, x.shape[:-2]),)


def _det(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    return Definition((), (OpaqueBlock("det", "det", ("x0",), ("y0",)),))


OPERATORS = (
    Operator("RoiAlign", _roi_infer, _roi),
    Operator("Det", _det_infer, _det),
    Operator("TopK", _topk_infer, _topk, steers={1: "k"}, sizes=(1,), wraps=True),
    Operator("ScatterND", same_type, _scatter, addresses=(1,), wraps=True),
    Operator("ScatterElements", same_type, _scatter, addresses=(1,), wraps=True),
    Operator("Scatter", same_type, _scatter, addresses=(1,)),
)
