"""Operators that change shapes, or make tensors of a shape. What changes shapes alone becomes a Reshape to a constant
shape."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import count_of, refuse, whole
from modelc.frontend.operators.form import Form, axes_of, plain, whole_numbers, with_most
from modelc.ir.expr import DTYPES


def _reshape(b: Builder, n: OnnxNode) -> None:
    wanted = whole_numbers(b, n, 1, "shape")
    if wanted is None:
        raise n.fail("expected a shape, found none")
    source = b.shape(n.inputs[0])
    if not n.attrs.get("allowzero", 0):
        if any(d == 0 and k >= len(source) for k, d in enumerate(wanted)):
            raise n.fail(f"expected a 0 only where the input {list(source)} has a dimension, found {list(wanted)}")
        wanted = tuple(source[k] if d == 0 else d for k, d in enumerate(wanted))
    product = prod(d for d in wanted if d != -1)
    if wanted.count(-1) > 1 or (-1 in wanted and (product <= 0 or prod(source) % product)):
        raise n.fail(f"expected a shape that {list(source)} fits, found {list(wanted)}")
    target = tuple(prod(source) // product if d == -1 else d for d in wanted)
    if prod(target) != prod(source) or any(d < 0 for d in target):
        raise n.fail(f"expected a shape of {prod(source)} elements as the input {list(source)}, found {list(wanted)}")
    b.reshape(n, n.inputs[0], target, n.outputs[0])


def _flatten(b: Builder, n: OnnxNode) -> None:
    shape = b.shape(n.inputs[0])
    axis = n.attrs.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise n.fail(f"expected axis within {len(shape)} dimensions, found {axis}")
    axis = axis + len(shape) if axis < 0 else axis
    b.reshape(n, n.inputs[0], (prod(shape[:axis]), prod(shape[axis:])), n.outputs[0])


def _squeeze(b: Builder, n: OnnxNode) -> None:
    shape = b.shape(n.inputs[0])
    axes = whole_numbers(b, n, 1, "axes")
    gone = axes_of(n, axes, len(shape)) if axes is not None else [k for k, d in enumerate(shape) if d == 1]
    if any(shape[a] != 1 for a in gone):
        raise n.fail(f"expected dimensions of extent 1 at axes {list(gone)}, found {list(shape)}")
    b.reshape(n, n.inputs[0], [d for k, d in enumerate(shape) if k not in gone], n.outputs[0])


def _unsqueeze(b: Builder, n: OnnxNode) -> None:
    axes = whole_numbers(b, n, 1, "axes")
    if axes is None:
        raise n.fail("expected axes, found none")
    shape = list(b.shape(n.inputs[0]))
    new = axes_of(n, axes, len(shape) + len(axes))
    if len(set(new)) != len(new):
        raise n.fail(f"expected distinct axes, found {list(axes)}")
    for axis in sorted(new):
        shape.insert(axis, 1)
    b.reshape(n, n.inputs[0], shape, n.outputs[0])


def _dropout(b: Builder, n: OnnxNode) -> None:
    training = b.steering(n, 2, "training_mode")
    if training is not None and bool(training):
        raise n.fail("this is dropout in training mode; export the model for inference")
    b.emit(n, "Identity", n.inputs[:1], outputs=n.outputs[:1])
    if n.wants(1):
        kind = "bool" if n.version >= 10 else b.value(n.inputs[0]).dtype
        mask = b.constant(np.ones((), DTYPES[kind]), f"{n.outputs[1]}_one")
        shape = b.constant(np.asarray(b.shape(n.inputs[0]), np.int64), f"{n.outputs[1]}_shape")
        b.emit(n, "Expand", (mask, shape), outputs=n.outputs[1:2])


def _constant_of_shape(b: Builder, n: OnnxNode) -> None:
    shape = b.steering(n, 0, "shape")
    value = np.asarray(n.attrs.get("value", np.zeros(1, np.float32)))
    if shape is None or value.size != 1:
        raise n.fail("expected a shape and a value of one element")
    target = b.constant(shape.astype(np.int64), f"{n.outputs[0]}_shape")
    b.emit(n, "Expand", (b.constant(value.reshape(()), f"{n.outputs[0]}_value"), target), outputs=n.outputs)


def _eye_like(b: Builder, n: OnnxNode) -> None:
    value = b.value(n.inputs[0])
    if len(value.shape) != 2:
        raise n.fail(f"expected a matrix, found {list(value.shape)}")
    dtype = DTYPES[n.attrs.get("dtype", value.dtype)]
    b.make_room(n, prod(value.shape) * dtype.itemsize)
    eye = np.eye(*value.shape, k=n.attrs.get("k", 0), dtype=dtype)
    b.bind(n, n.outputs[0], b.constant(eye, f"{n.outputs[0]}_eye"))


# --- where sizes depend on data -------------------------------------------------------------------------------------


def _counted_shape(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    shape, counts = b.shape(x), b.sizes.of(x)
    every = [b.sizes.mark(counts[k]) if k in counts else d for k, d in enumerate(shape)]
    part = range(len(shape))[slice(n.attrs.get("start"), n.attrs.get("end"))]
    numbers = np.asarray([every[k] for k in part], np.int64)
    if not any(k in counts for k in part):
        b.bind(n, n.outputs[0], b.constant(numbers, f"{n.outputs[0]}_numbers"))
        return
    pieces = [
        b.reshape(n, counts[k], (1,)) if k in counts else b.constant(np.asarray([shape[k]], np.int64), f"{x}_extent")
        for k in part
    ]
    b.emit(n, "Concat", pieces, {"axis": 0}, n.outputs)
    b.sizes.elements[n.outputs[0]] = numbers


def _counted_size(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    counts = b.sizes.of(x)
    total, *others = counts.values()
    for other in others:
        total = count_of(b, n, "Mul", total, other)
    fixed = prod(d for k, d in enumerate(b.shape(x)) if k not in counts)
    total = count_of(b, n, "Mul", total, fixed) if fixed != 1 else total
    b.emit(n, "Identity", (total,), outputs=n.outputs)
    b.sizes.elements[n.outputs[0]] = np.asarray(b.sizes.mark(total), np.int64)


def _counted_reshape(b: Builder, n: OnnxNode) -> None:
    """A dimension that depends on data has to be said as one that does: by a size, by -1, or by the 0 that keeps it."""
    x = n.inputs[0]
    steered, marks = with_most(b, n, 1)
    wanted = b.data(steered.input(1)) if steered.input(1) else np.asarray(n.attrs.get("shape", ()), np.int64)
    _reshape(b, steered)
    counts = b.sizes.of(n.outputs[0])
    for axis, count in counts.items():
        free = wanted is not None and int(wanted.reshape(-1)[axis]) in (-1, 0)
        if not free and marks.get(axis) != count:
            raise refuse(n, x, min(b.sizes.of(x), default=0), f"the shape asks for {b.shape(n.outputs[0])[axis]} of it")
    if lost := marks.keys() - counts.keys():
        raise n.fail(f"expected the size at {min(lost)} of the shape to be that of a dimension of {x!r}")


def _counted_expand(b: Builder, n: OnnxNode) -> None:
    """The output has the sizes that its shape was made of."""
    constant = n.op == "ConstantOfShape"
    steered, marks = with_most(b, n, 0 if constant else 1)
    (_constant_of_shape if constant else plain)(b, steered)
    output = n.outputs[0]
    counts = dict(b.sizes.of(output))
    if other := [k for k, c in marks.items() if counts.get(k, c) != c]:
        raise refuse(n, n.inputs[0], other[0], "the shape asks for another")
    b.sizes.give(output, {**counts, **marks})


def _counted_tile(b: Builder, n: OnnxNode) -> None:
    """What is repeated as often as data says comes first in what is repeated as often as can be."""
    x = n.inputs[0]
    steered, marks = with_most(b, n, 1)
    repeats = whole_numbers(b, steered, 1, "repeats")
    counts, shape = dict(b.sizes.of(x)), b.shape(x)
    if repeats is None or len(repeats) != len(shape):
        raise n.fail(f"expected {len(shape)} repeats that are known, or sizes")
    if other := [k for k in counts if repeats[k] != 1]:
        raise refuse(n, x, other[0], "it is repeated")
    plain(b, replace(steered, inputs=(whole(b, n, x), *steered.inputs[1:])))
    own = {k: count_of(b, n, "Mul", c, shape[k]) if shape[k] != 1 else c for k, c in marks.items()}
    b.sizes.give(n.outputs[0], {**counts, **own})


def no_size(b: Builder, n: OnnxNode) -> None:
    """Operators that take the shape of their input for the one of their result."""
    value = next(x for x in n.inputs if x)
    raise refuse(n, value, min(b.sizes.of(value), default=0), "the node makes a tensor of its size")


def _counted_dropout(b: Builder, n: OnnxNode) -> None:
    (no_size if n.wants(1) else _dropout)(b, n)


FORMS = (
    Form("Shape", counted=_counted_shape),
    Form("Size", counted=_counted_size),
    Form("Reshape", _reshape, _counted_reshape),
    Form("Flatten", _flatten),
    Form("Squeeze", _squeeze),
    Form("Unsqueeze", _unsqueeze),
    Form("Dropout", _dropout, _counted_dropout),
    Form("Expand", counted=_counted_expand),
    Form("Tile", counted=_counted_tile),
    Form("ConstantOfShape", _constant_of_shape, _counted_expand),
    Form("EyeLike", _eye_like, no_size),
)
