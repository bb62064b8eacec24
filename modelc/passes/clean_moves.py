"""Fewer moves of data: what changes nothing goes, chains of reshapes and transposes merge, padding goes into the window
that reads it, and gathers of regular indices become slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Node
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, RulePass

X = Bind("x")


# --- what changes nothing -----------------------------------------------------------------------------------------


def _same(e: Editor, m: Match) -> str | None:
    """The input itself, if the output has its dtype and shape (which says enough of these operators)."""
    x, y = e.value(m["x"]), e.value(m.root.outputs[0])
    return m["x"] if (x.dtype, x.shape) == (y.dtype, y.shape) else None


def _same_pad(e: Editor, m: Match) -> str | None:
    pads = e.data(m.root.inputs[1])
    return m["x"] if pads is not None and not pads.any() else None


def _same_slice(e: Editor, m: Match) -> str | None:
    steps = e.data(m.root.inputs[4]) if len(m.root.inputs) > 4 else None
    return _same(e, m) if steps is None or (steps == 1).all() else None


def _same_resize(e: Editor, m: Match) -> str | None:
    scales = e.data(m.root.inputs[2]) if len(m.root.inputs) > 2 else None
    cropped = m.root.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return None if cropped or (scales is not None and (scales != 1).any()) else _same(e, m)


# --- reshapes and transposes --------------------------------------------------------------------------------------


def _reshape(e: Editor, x: str, shape: tuple[int, ...], base: str) -> str:
    target = e.constant(np.asarray(shape, np.int64), f"{base}_shape")
    return e.add("Reshape", (x, target), {"allowzero": 1} if 0 in shape else {})


def _reshaped_twice(e: Editor, m: Match) -> str | None:
    out = m.root.outputs[0]
    return m["x"] if e.shape(out) == e.shape(m["x"]) else _reshape(e, m["x"], e.shape(out), out)


def _perm(e: Editor, node: Node) -> tuple[int, ...]:
    return tuple(node.attrs.get("perm") or range(len(e.shape(node.inputs[0])))[::-1])


def _transposed_twice(e: Editor, m: Match) -> str | None:
    first, second = _perm(e, e.node(m["inner"])), _perm(e, m.root)
    return e.add("Transpose", (m["x"],), {"perm": tuple(first[k] for k in second)})


def _still(e: Editor, m: Match) -> str | None:
    """A transpose that leaves the order of all dimensions but those of one element is a reshape, or nothing."""
    shape, perm, out = e.shape(m["x"]), _perm(e, m.root), m.root.outputs[0]
    moved = [k for k in perm if shape[k] != 1]
    if moved != sorted(moved):
        return None
    return m["x"] if perm == tuple(range(len(shape))) else _reshape(e, m["x"], e.shape(out), out)


# --- padding ------------------------------------------------------------------------------------------------------


def _spatial_pads(e: Editor, pad: Node) -> tuple[int, ...] | None:
    """Before and after for every spatial dimension, if the Pad adds a constant to those alone."""
    rank, pads = len(e.shape(pad.inputs[0])), e.data(pad.inputs[1])
    if pad.attrs.get("mode", "constant") != "constant" or pads is None or (len(pad.inputs) > 3 and pad.inputs[3]):
        return None
    amounts = tuple(int(p) for p in pads.reshape(-1))
    outer = (*amounts[:2], *amounts[rank : rank + 2])
    if rank < 3 or any(outer) or min(amounts) < 0:
        return None
    return (*amounts[2:rank], *amounts[rank + 2 :])


def _pad_value(e: Editor, pad: Node) -> float | None:
    return e.scalar(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] else 0.0


def _padded_window(e: Editor, m: Match) -> str | None:
    pad, node = e.node(m["padded"]), m.root
    pads, value = _spatial_pads(e, pad), _pad_value(e, pad)
    if pads is None or value is None or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    own = tuple(node.attrs.get("pads") or (0,) * len(pads))
    attrs: dict[str, Any] = {"pads": tuple(a + b for a, b in zip(own, pads, strict=True))}
    if node.op != "Conv" and (node.attrs.get("ceil_mode", 0) or not _touches_data(node, attrs["pads"])):
        return None
    if node.op == "AveragePool":
        if value != 0 or (any(own) and not node.attrs.get("count_include_pad", 0)):
            return None
        attrs["count_include_pad"] = 1
    elif node.op == "MaxPool":
        if not _below(e, m["x"], value):
            return None
    elif value != 0:
        return None
    return e.again(node, (m["x"], *node.inputs[1:]), attrs)


def _lowest(e: Editor, x: str) -> float:
    dtype = e.value(x).dtype
    return -np.inf if dtype[0] in "fb" else float(np.iinfo(DTYPES[dtype]).min)


def _below(e: Editor, x: str, value: float) -> bool:
    """Whether no element of `x` is below `value`, so that a maximum over data never sees the padding."""
    if value <= _lowest(e, x) or (e.value(x).dtype == "float32" and value <= float(np.finfo(np.float32).min)):
        return True
    node = e.producer(x)
    return node is not None and value <= 0 and node.op in ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp")


def _touches_data(node: Node, pads: tuple[int, ...]) -> bool:
    """Whether every window reads at least one element that is not padding."""
    kernel = tuple(node.attrs["kernel_shape"])
    dilations = node.attrs.get("dilations") or (1,) * len(kernel)
    return all(d == 1 for d in dilations) and all(p < k for p, k in zip(pads, kernel * 2, strict=True))


# --- broadcasts and gathers ---------------------------------------------------------------------------------------


def _broadcast_anyway(e: Editor, m: Match) -> str | None:
    """Arithmetic broadcasts its operands itself."""
    inputs = tuple(m["x"] if name == m["expanded"] else name for name in m.root.inputs)
    same = np.broadcast_shapes(*(e.shape(name) for name in inputs)) == e.shape(m.root.outputs[0])
    return e.again(m.root, inputs) if same else None


def _regular_gather(e: Editor, m: Match) -> str | None:
    """Gather at constant indices of one step (one index is enough) is a Slice."""
    indices, shape, out = e.data(m["indices"]), e.shape(m["x"]), m.root.outputs[0]
    axis = m.root.attrs.get("axis", 0) % max(len(shape), 1)
    if indices is None or not indices.size or indices.ndim > 1:
        return None
    at = np.where(indices.reshape(-1) < 0, indices.reshape(-1) + shape[axis], indices.reshape(-1)).astype(np.int64)
    if at.min() < 0 or at.max() >= shape[axis]:
        return None
    step = int(at[1] - at[0]) if at.size > 1 else 1
    if step < 1 or (np.diff(at) != step).any():
        return None
    parts = ((int(at[0]), "starts"), (int(at[-1]) + 1, "ends"), (axis, "axes"), (step, "steps"))
    names = [e.constant(np.asarray([v], np.int64), f"{out}_{name}") for v, name in parts]
    whole = at.size == shape[axis]
    sliced = m["x"] if whole else e.add("Slice", (m["x"], *names))
    return sliced if e.shape(out) == e.shape(sliced) else _reshape(e, sliced, e.shape(out), out)


BROADCASTING = "Add|Sub|Mul|Div|Pow|Equal|Less|LessOrEqual|Greater|GreaterOrEqual|And|Or|Xor"
EXPANDED = Op("Expand", X, Bind("shape"), name="expanded")

RULES = (
    Rule(Op("Identity|Cast|CastLike|Reshape|Expand|Tile", X, more=True), _same, private=False),
    Rule(Op("Concat|Sum|Mean|Max|Min", X), _same, private=False),
    Rule(Op("Split", X, Constant("split")), _same, private=False),
    Rule(Op("Pad", X, more=True), _same_pad, private=False),
    Rule(Op("Slice", X, more=True), _same_slice, private=False),
    Rule(Op("Resize", X, more=True), _same_resize, private=False),
    Rule(Op("Reshape", Op("Reshape", X, Bind("first")), Bind("second")), _reshaped_twice, private=False),
    Rule(Op("Transpose", X), _still, private=False),
    Rule(Op("Transpose", Op("Transpose", X, name="inner")), _transposed_twice, private=False),
    Rule(
        Op("Conv|MaxPool|AveragePool", Op("Pad", X, name="padded", more=True), more=True),
        _padded_window,
    ),
    Rule(Op(BROADCASTING, EXPANDED, Bind("y")), _broadcast_anyway, private=False),
    Rule(Op(BROADCASTING, Bind("y"), EXPANDED), _broadcast_anyway, private=False),
    Rule(Op("Gather", X, Constant("indices")), _regular_gather, private=False),
)


class CleanMoves(RulePass):
    rules = RULES
