"""Operators whose results have a size that depends on data. The last output of each says how much there is, in
int64; the others have room for as much as there can be, and zeros beyond.

    NonZero(x bool)                                              -> places, count
    SuppressBoxes(boxes, scores, most, iou, score, there)        -> kept, counts  for each class of each image
    ListBoxes(kept, counts)  classes                             -> selected, count
    Unique(x, there)  axis sorted                                -> y, indices, inverse, counts, count
    Bound(x)  most                                               -> x in int64, of which every run checks 0 <= x <= most

`there` says how many of the boxes, or of the slices along `axis`, there are, where that depends on data itself. The
room of a dimension is at least ROOM, so that no such dimension is taken for one that broadcasts; `spare` elements more
make it so at every size.
"""

from __future__ import annotations

from math import prod

from modelc.ir.addresses import claim
from modelc.ir.block import OpaqueBlock
from modelc.ir.expr import NARROW, Load, cast
from modelc.ir.graph import Graph, Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    assign,
    axis_of,
    fail,
    given,
    grid,
    known_scalar,
    names,
    point,
    required,
)

Outputs = tuple[Value | None, ...]
ROOM = 2
REAL = ("float32", "float64")


def room(node: Node, most: int) -> int:
    return max(most + int(node.attrs.get("spare", 0)), ROOM)


def _non_zero_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    if x.dtype != "bool" or not x.shape:
        fail(node, f"expected bools of one dimension at least, found {x.dtype}{list(x.shape)}")
    return (("int64", (len(x.shape), room(node, prod(x.shape)))), ("int64", ()))


def _non_zero(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    (_, (_, most)), _ = _non_zero_infer(node, inputs)
    return Definition((), (OpaqueBlock("nonzero", "non_zero", ("x0",), ("y1", "y0"), (("room", most),)),))


# --- non-max suppression ------------------------------------------------------------------------------------------

LIMITS = ("most", "iou", "score", "there")  # inputs from the third on


def _nms_infer(node: Node, inputs: Inputs) -> Types:
    boxes, scores = required(node, inputs, 0), required(node, inputs, 1)
    fits = len(boxes.shape) == 3 == len(scores.shape) and boxes.shape[2] == 4
    if not fits or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        shapes = f"{list(boxes.shape)} and {list(scores.shape)}"
        fail(node, f"expected boxes [images, boxes, 4] and scores [images, classes, boxes], found {shapes}")
    if boxes.dtype not in REAL or scores.dtype != boxes.dtype:
        fail(node, f"expected boxes and scores of float32, found {boxes.dtype} and {scores.dtype}")
    if int(node.attrs.get("center_point_box", 0)) not in (0, 1):
        fail(node, f"expected center_point_box of 0 or 1, found {node.attrs['center_point_box']}")
    required(node, inputs, 2)
    for k, name in enumerate(LIMITS, 2):
        if (value := given(inputs, k)) is not None and prod(value.shape) != 1:
            fail(node, f"expected one number as {name}, found {list(value.shape)}")
    rows = prod(scores.shape[:2])
    return (("int64", (rows, _most(node, inputs))), ("int64", (rows,)))


def _most(node: Node, inputs: Inputs) -> int:
    """How many boxes of a class can stay."""
    count, limit = required(node, inputs, 1).shape[2], required(node, inputs, 2)
    most = known_scalar(node, inputs, 2, "max_output_boxes_per_class") if limit.data is not None else None
    return count if most is None else min(count, max(int(most), 0))


def _nms(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    there = [(k, name) for k, name in enumerate(LIMITS, 2) if given(inputs, k) is not None]
    attrs = (
        ("center", bool(node.attrs.get("center_point_box", 0))),
        ("limits", tuple(name for _, name in there)),
        ("room", _most(node, inputs)),
    )
    reads = ("x0", "x1", *(f"x{k}" for k, _ in there))
    return Definition((), (OpaqueBlock("suppress", "nms_rows", reads, ("y0", "y1"), attrs),))


def _list_infer(node: Node, inputs: Inputs) -> Types:
    kept, counts = required(node, inputs, 0), required(node, inputs, 1)
    if {kept.dtype, counts.dtype} != {"int64"} or len(kept.shape) != 2 or counts.shape != kept.shape[:1]:
        fail(node, f"expected rows of int64 and how long each is, found {list(kept.shape)} and {list(counts.shape)}")
    return (("int64", (room(node, prod(kept.shape)), 3)), ("int64", ()))


def _list(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    (_, (most, _)), _ = _list_infer(node, inputs)
    attrs = (("classes", int(node.attrs["classes"])), ("room", most))
    return Definition((), (OpaqueBlock("list", "nms_list", ("x0", "x1"), ("y1", "y0"), attrs),))


# --- unique -------------------------------------------------------------------------------------------------------


def _unique_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    n = x.shape[axis]
    if x.dtype in NARROW:
        fail(node, f"expected numbers of a byte or more, found {x.dtype}")
    shape = (*x.shape[:axis], room(node, n), *x.shape[axis + 1 :])
    lists = (("int64", (room(node, n),)), ("int64", (n,)), ("int64", (room(node, n),)))
    return ((x.dtype, shape), *lists, ("int64", ()))


def _unique(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    attrs = (("axis", axis), ("room", room(node, x.shape[axis])), ("sorted", bool(node.attrs.get("sorted", 1))))
    reads = ("x0", "x1") if given(inputs, 1) is not None else ("x0",)
    return Definition((), (OpaqueBlock("unique", "unique", reads, ("y4", "y0", "y1", "y2", "y3"), attrs),))


# --- sizes that are computed ----------------------------------------------------------------------------------------


def _bound_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    if x.dtype not in ("int32", "int64"):
        fail(node, f"expected whole numbers, found {x.dtype}")
    return (("int64", x.shape),)


def _bound(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    over = point(names(len(x.shape)))
    claimed = claim(Load("x0", over), 0, int(node.attrs["most"]))
    body = claimed if x.dtype == "int64" else cast("int64", claimed)
    return Definition((), (assign("bound", grid(x.shape), Load("y0", over), body),))


def checks_sizes(graph: Graph) -> bool:
    """Whether sizes are computed, so that a run has to look at them whatever else it checks."""
    return any(node.op == "Bound" for node in graph.every_node)


OPERATORS = (
    Operator("Bound", _bound_infer, _bound),
    Operator("NonZero", _non_zero_infer, _non_zero),
    Operator("SuppressBoxes", _nms_infer, _nms),
    Operator("ListBoxes", _list_infer, _list),
    Operator("Unique", _unique_infer, _unique, wraps=True),
)
