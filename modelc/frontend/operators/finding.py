"""Operators that find what depends on data: NonZero, Compress, NonMaxSuppression, Unique. What they give has room for
all that can be found, and a count (sizes.py)."""

from __future__ import annotations

from math import prod

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.rooms import SPARE
from modelc.frontend.building.sizes import masked, refuse, whole
from modelc.frontend.operators.form import Form
from modelc.ops.found import LIMITS
from modelc.ops.row import Row


def _emit_finding(
    b: Builder, n: OnnxNode, op: str, inputs: tuple[str, ...], axes: tuple[int, ...], attrs: dict[str, int]
) -> str:
    """Adds the node, whose last output is the count. `axes` says which axis of each other output has the count's length
    (-1: none). If the count is a size of the run (rooms.py), a Slice cuts these outputs to that size."""
    key = (
        op,
        tuple(b.sizes.copies.get(x, x) for x in inputs),
        tuple(sorted(attrs.items())),
        n.outputs if any(n.outputs[1:]) else (),
    )
    if key not in b.sizes.made:
        count = b.fresh(f"{n.outputs[0] or n.name}_count")
        outputs = (*(x or "" for x in n.outputs), *[""] * (len(axes) - len(n.outputs)), count)
        cut = [x for x, axis in zip(outputs, axes, strict=False) if x and axis >= 0 and b.rooms is not None]
        every = {x: b.fresh(f"{x}_every") for x in cut}
        spare = {"spare": SPARE} if b.rooms is not None else {}
        b.emit(n, op, inputs, attrs | spare, [every.get(x, x) for x in outputs])
        most = max(b.shape(every.get(x, x))[k] for x, k in zip(outputs, axes, strict=False) if x and k >= 0)
        b.sizes.bounds[count] = most if b.rooms is None else b.rooms.of(count, most)
        for x, axis in zip(outputs, axes, strict=False):
            if x in every:
                places = [b.constant(np.asarray([k]), f"{x}_room") for k in (0, b.sizes.bounds[count], axis)]
                b.emit(n, "Slice", (every[x], *places), {}, (x,))
            if x:
                b.sizes.give(x, {axis: count} if axis >= 0 else {})
        b.sizes.made[key] = (outputs[0],)
        return outputs[0]
    (first_made,) = b.sizes.made[key]
    return b.emit(n, "Identity", (first_made,), outputs=n.outputs[:1])


def _true_places(b: Builder, n: OnnxNode, x: str, output: str) -> str:
    """Where `x` is true, or not zero: [dimensions, places]."""
    key = ("true", b.sizes.copies.get(x, x), *sorted(b.sizes.of(x).items()))
    if key not in b.sizes.made:
        true = x if b.value(x).dtype == "bool" else b.emit(n, "Cast", (x,), {"to": "bool"})
        b.sizes.made[key] = (masked(b, n, true, range(len(b.shape(x))), False),)
    (true,) = b.sizes.made[key]
    part = type(n)(n.op, "", n.version, n.name, (true,), (output,), {}, n.source)
    return _emit_finding(b, part, "NonZero", (true,), (1,), {})


def non_zero(b: Builder, n: OnnxNode) -> None:
    shape = b.shape(n.inputs[0])
    if not shape:
        raise n.fail("expected a tensor of one dimension at least, found a scalar")
    if not prod(shape):
        b.bind(n, n.outputs[0], b.constant(np.zeros((len(shape), 0), np.int64), f"{n.outputs[0]}_none"))
        return
    _true_places(b, n, n.inputs[0], n.outputs[0])


def compress(b: Builder, n: OnnxNode) -> None:
    """The elements at the places where the condition is true."""
    x, condition = n.inputs[0], n.inputs[1]
    if len(b.shape(condition)) != 1:
        raise n.fail(f"expected a condition of one dimension, found {list(b.shape(condition))}")
    if b.data(condition) is not None and not b.sizes.of(condition) and not b.sizes.of(x):
        b.emit(n, "Compress", n.inputs, n.attrs, n.outputs)
        return
    if "axis" not in n.attrs:
        x = b.reshape(n, x, (prod(b.shape(x)),))
    axis = int(n.attrs.get("axis", 0)) % len(b.shape(x))
    extent, (length,) = b.shape(x)[axis], b.shape(condition)
    if length > extent:
        raise n.fail(f"expected a condition of at most {extent} elements, found {length}")
    if not length:
        raise n.fail("expected a condition of one element at least, found none")
    if (count := b.sizes.of(x).get(axis)) is not None and b.sizes.of(condition).get(0) not in (count, None):
        raise refuse(n, x, axis, "its condition has another such size")
    counts = b.sizes.of(x)
    if axis in counts and not b.sizes.of(condition):
        b.sizes.give(condition := whole(b, n, b.emit(n, "Identity", (condition,))), {0: counts[axis]})
    places = _true_places(b, n, condition, b.fresh(f"{n.outputs[0]}_places"))
    places = b.reshape(n, places, (b.shape(places)[1],))
    b.emit(n, "Gather", (whole(b, n, x, (axis,)), places), {"axis": axis}, n.outputs)


def non_max_suppression(b: Builder, n: OnnxNode) -> None:
    boxes, scores = n.inputs[:2]
    of_boxes, of_scores = b.sizes.of(boxes), b.sizes.of(scores)
    there = {count for count in (of_boxes.get(1), of_scores.get(2)) if count is not None}
    others = [(boxes, k) for k in of_boxes if k != 1] + [(scores, k) for k in of_scores if k != 2]
    if others or len(there) > 1:
        value, axis = others[0] if others else (scores, 2)
        raise refuse(n, value, axis, "images, classes and the numbers of a box are those of a known size")
    inputs = [whole(b, n, boxes), whole(b, n, scores), *(n.input(k) for k in range(2, 5)), *there]
    if not inputs[2]:
        inputs[2] = b.constant(np.zeros((), np.int64), f"{n.outputs[0]}_most")
    most, rows = b.data(inputs[2]), prod(b.shape(scores)[:2])
    if (most is not None and int(most.reshape(-1)[0]) <= 0) or not rows * b.shape(scores)[2]:
        b.bind(n, n.outputs[0], b.constant(np.zeros((0, 3), np.int64), f"{n.outputs[0]}_none"))
        return
    for k in range(2, 2 + len(LIMITS)):
        if k < len(inputs) and inputs[k] and prod(b.shape(inputs[k])) != 1:
            inputs[k] = ""  # an empty tensor is an absent one
    attrs = {"center_point_box": int(n.attrs.get("center_point_box", 0))}
    rows_of = (b.fresh(f"{n.outputs[0]}_kept"), b.fresh(f"{n.outputs[0]}_counts"))
    b.emit(n, "SuppressBoxes", tuple(inputs), attrs, rows_of)
    _emit_finding(b, n, "ListBoxes", rows_of, (0,), {"classes": b.shape(scores)[1]})


def unique(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    if "axis" not in n.attrs:
        x = b.reshape(n, x, (prod(b.shape(x)),))
    shape = b.shape(x)
    axis = int(n.attrs.get("axis", 0))
    if not -len(shape) <= axis < len(shape) or not prod(shape):
        raise n.fail(f"expected an axis of a tensor that has elements, found axis {axis} of {list(shape)}")
    axis %= len(shape)
    counts = dict(b.sizes.of(x))
    if others := [k for k in counts if k != axis]:
        raise refuse(n, x, others[0], "slices that are compared have it")
    attrs = {"axis": axis, "sorted": int(n.attrs.get("sorted", 1))}
    inputs = (whole(b, n, x), *counts.values())
    _emit_finding(b, n, "Unique", inputs, (axis, 0, -1, 0), attrs)
    if n.wants(2):
        b.sizes.give(n.outputs[2], {0: counts[axis]} if counts else {})


FORMS = (
    Form("NonZero", non_zero),
    Form("Compress", compress),
    Form("NonMaxSuppression", non_max_suppression, row=Row("NonMaxSuppression", addresses=(2, 3, 4))),
    Form("Unique", unique),
)
