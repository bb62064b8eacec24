"""Values as kernels store them, and as the model has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Value
from modelc.ir.layout import Layout
from modelc.ir.program import Placed, Program
from modelc.package.watch import Data
from modelc.passes.machine import BYTES, WIDE
from modelc.passes.quantized import shifted, zero_of

Array = NDArray[Any]


def logical(place: Placed | Buffer, data: Data) -> Array:
    """The value by its logical shape, from the bytes of its place: from its first element to its last."""
    kind = DTYPES[place.dtype]
    bits = kind if kind.isbuiltin == 1 else np.dtype(f"u{kind.itemsize}")  # NumPy strides its own dtypes alone
    return _viewed(place, np.frombuffer(data, bits)).view(kind)


def _viewed(place: Placed | Buffer, flat: Array) -> Array:
    if not flat.size:
        return np.zeros(place.shape, flat.dtype)
    strides = [step * flat.itemsize for step in place.physical_strides]
    view = np.lib.stride_tricks.as_strided(flat, place.physical_shape, strides, writeable=False)
    return unpacked(view, place.layout, place.shape)


def index_in(place: Placed | Buffer, other: Buffer, elements: int, index: tuple[Array, ...]) -> tuple[Array, ...]:
    """The logical index in `other`, which lies in the same memory of so many elements, of each index in `place`: a
    derivation rule may see two dimensions as one."""
    if place.shape == other.shape and place.layout == other.layout:
        return index
    numbers = np.arange(elements)
    where = np.zeros(elements, np.int64)
    theirs = _viewed(other, numbers).reshape(-1)
    where[theirs] = np.arange(theirs.size)
    return np.unravel_index(where[_viewed(place, numbers)[index]], other.shape) if other.shape else ()


def unpacked(stored: Array, layout: Layout, shape: tuple[int, ...]) -> Array:
    """The inverse of storing by `layout`."""
    shapes = [shape]
    for primitive in layout.primitives:
        shapes.append(primitive.shape(shapes[-1]))
    for primitive, before in zip(reversed(layout.primitives), reversed(shapes[:-1]), strict=True):
        if primitive.name == "reorder":
            stored = stored.transpose(np.argsort(primitive.args))
        elif primitive.name in ("split", "fuse"):
            stored = stored.reshape(before)
        elif primitive.name == "unfold":
            dim, tile, stride = primitive.args
            at = np.arange(before[dim])
            t = np.clip((at - tile + stride) // stride, 0, stored.shape[dim] - 1)
            stored = np.moveaxis(np.moveaxis(stored, (dim, dim + 1), (0, 1))[t, at - t * stride], 0, dim)
        else:
            dim, start = primitive.args[0], primitive.args[1] if primitive.name == "pad" else 0
            stored = stored.take(range(start, start + before[dim]), dim)
    return stored


def in_model(stored: Array, value: Value, graph: Graph) -> Array | None:
    """What is stored as an instruction multiplies it, as the model, `graph`, has it: without the channels that were
    added, each element as elements_in_model() says; None where it is another value than the model's."""
    if stored.ndim != len(value.shape) or any(a < b for a, b in zip(stored.shape, value.shape, strict=True)):
        return None
    array = stored[tuple(slice(n) for n in value.shape)] if stored.shape != value.shape else stored
    return elements_in_model(array, value, graph)


def elements_in_model(stored: Array, value: Value, graph: Graph) -> Array | None:
    """Elements of a value as the model has them: bytes as the kind that they stand for, WIDE numbers as the bytes,
    16-bit floats as the float32 that they stand for; None where their dtype is another one."""
    kinds = {stored.dtype.name, value.dtype}
    if kinds == set(BYTES):
        return shifted(stored, value.dtype)
    if stored.dtype.name == WIDE and value.dtype in BYTES:
        zero = zero_of(graph, value.name)
        return None if zero is None else (stored + np.int16(zero)).astype(DTYPES[value.dtype])
    if stored.dtype.name in ("bfloat16", "float16") and value.dtype == "float32":
        return stored.astype(np.float32)
    return stored if stored.dtype == DTYPES[value.dtype] else None


def constant_of(program: Program, placed: Placed) -> Array:
    """The data of a constant, or of a view of one, in logical shape."""
    data = program.constants[placed.root]
    if not placed.is_view and placed.strides is None:
        return data.reshape(placed.shape)
    flat = np.asarray(data, order="C").reshape(-1)
    return logical(placed, flat[placed.offset : placed.offset + placed.elements].tobytes())
