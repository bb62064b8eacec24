"""Operators that cut tensors, put them together, or add to their ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.merged import extended
from modelc.frontend.building.sizes import count_of, less, masked, refuse, there, whole
from modelc.frontend.building.sliding import sliding
from modelc.frontend.operators.form import Form, axes_of, whole_numbers, with_most, without
from modelc.ir.expr import DTYPES
from modelc.ops.found import ROOM


def _split(b: Builder, n: OnnxNode) -> None:
    """With explicit sizes."""
    shape = b.shape(n.inputs[0])
    (axis,) = axes_of(n, (n.attrs.get("axis", 0),), len(shape))
    sizes = whole_numbers(b, n, 1, "split")
    if sizes is None:
        count = n.attrs.get("num_outputs", len(n.outputs))
        each = -(-shape[axis] // count)
        sizes = tuple(max(min(each, shape[axis] - k * each), 0) for k in range(count))
    if len(sizes) != len(n.outputs) or sum(sizes) != shape[axis]:
        raise n.fail(f"expected {len(n.outputs)} sizes of {shape[axis]} in all, found {list(sizes)}")
    split = b.constant(np.asarray(sizes, np.int64), f"{n.outputs[0]}_split")
    b.emit(n, "Split", (n.inputs[0], split), {"axis": axis}, n.outputs)


def _concat(b: Builder, n: OnnxNode) -> None:
    b.emit(n, "Concat", n.inputs, {"axis": n.attrs.get("axis", 1)}, n.outputs)


def _pad(b: Builder, n: OnnxNode) -> None:
    """The constant as an input; `paddings` is the name of operator set 1."""
    pads = whole_numbers(b, n, 1, "paddings" if n.version < 2 else "pads")
    if pads is None:
        raise n.fail("expected pads, found none")
    x = b.value(n.inputs[0])
    inputs = [n.inputs[0], b.constant(np.asarray(pads, np.int64), f"{n.outputs[0]}_pads"), n.input(2), n.input(3)]
    if n.version < 11 and n.attrs.get("value", 0.0) != 0.0:
        inputs[2] = b.constant(np.asarray(n.attrs["value"]).astype(DTYPES[x.dtype]), f"{n.outputs[0]}_value")
    b.emit(n, "Pad", inputs, without(n, "pads", "paddings", "value"), n.outputs)


def _slice(b: Builder, n: OnnxNode) -> None:
    if sliding(b, n):
        return
    starts, ends = whole_numbers(b, n, 1, "starts"), whole_numbers(b, n, 2, "ends")
    if starts is None or ends is None:
        raise n.fail("expected starts and ends, found none")
    axes = whole_numbers(b, n, 3, "axes") or tuple(range(len(starts)))
    steps = whole_numbers(b, n, 4, "steps") or (1,) * len(starts)
    parts = [
        b.constant(np.asarray(v, np.int64), f"{n.outputs[0]}_{name}")
        for name, v in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps))
    ]
    b.emit(n, "Slice", (n.inputs[0], *parts), {}, n.outputs)


# --- where sizes depend on data -------------------------------------------------------------------------------------


def _counted_slice(b: Builder, n: OnnxNode) -> None:
    """From a constant on, in steps of 1, to a constant, or to a size that depends on data."""
    x = n.inputs[0]
    shape, counts, room = b.shape(x), dict(b.sizes.of(x)), list(b.shape(x))
    (n, _), (ends_node, marks) = with_most(b, n, 1), with_most(b, n, 2)
    starts, given_ends = (whole_numbers(b, ends_node, k, name) for k, name in ((1, "starts"), (2, "ends")))
    if starts is None or given_ends is None or n.inputs[1] != ends_node.inputs[1]:
        raise n.fail("expected constants as starts, found sizes that depend on data")
    ends = list(given_ends)
    axes = [a % len(shape) for a in whole_numbers(b, n, 3, "axes") or range(len(starts))]
    steps = whole_numbers(b, n, 4, "steps") or [1] * len(starts)
    for k, axis in enumerate(axes):
        count, mark = counts.get(axis), marks.get(k)
        if count is None and mark is None:
            continue
        if steps[k] != 1 or starts[k] < 0:
            raise refuse(n, x, axis, "a part of it is taken from its end, or in steps")
        count = _end(b, n, count, mark, ends[k], shape[axis])
        last = shape[axis] if ends[k] < 0 else min(ends[k], shape[axis])
        ends[k] = max(last, starts[k] + ROOM)
        room[axis] = max(shape[axis], ends[k])
        counts[axis] = less(b, n, count, starts[k])
    given = [("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps)]
    parts = [b.constant(np.asarray(v, np.int64), f"{n.outputs[0]}_{name}") for name, v in given]
    kept = {k: c for k, c in counts.items() if k not in axes}
    b.emit(n, "Slice", (extended(b, n, x, room), *parts), {}, n.outputs)
    b.sizes.give(n.outputs[0], {**kept, **{a: counts[a] for a in axes if a in counts}})


def _end(b: Builder, n: OnnxNode, count: str | None, mark: str | None, end: int, extent: int) -> str:
    """How many elements there are up to the end of a part."""
    if mark is not None:
        if count is None:
            return count_of(b, n, "Min", mark, extent) if b.sizes.bounds[mark] > extent else mark
        return count if count == mark else count_of(b, n, "Min", count, mark)
    assert count is not None
    if end < 0:
        return less(b, n, count, -end)
    return count if end >= extent else count_of(b, n, "Min", count, end)


def _counted_pad(b: Builder, n: OnnxNode) -> None:
    """What is there filled up to a number of elements that is known, as detectors hand out their boxes: the size to pad
    by is the rest of that number."""
    x = n.inputs[0]
    steered, marks = with_most(b, n, 1)
    if not marks:
        _pad_by_numbers(b, n)
        return
    rank, dtype = len(b.shape(x)), b.value(x).dtype
    pads = list(whole_numbers(b, steered, 1, "pads") or ())
    value = n.input(2) or b.constant(np.zeros((), DTYPES[dtype]), f"{x}_fill")
    if str(n.attrs.get("mode", "constant")) != "constant" or n.input(3):
        raise n.fail("expected a constant to pad with, and pads of every dimension, where these depend on data")
    filled, counts = whole(b, n, x), dict(b.sizes.of(x))
    for at, missing in marks.items():
        axis = at - rank
        total, count = b.sizes.rests.get(missing, (0, ""))
        if axis < 0 or pads[axis] or counts.pop(axis, None) != count:
            raise refuse(n, x, max(axis, 0), "it is not filled up to a known size by pads behind it")
        extent = b.shape(filled)[axis]
        mask = there(b, n, count, extent, rank, axis)
        filled = b.emit(n, "Where", (mask, filled, b.reshape(n, value, ())))
        if extent > total:
            bounds = [b.constant(np.asarray([k], np.int64), f"{x}_bound") for k in (0, total, axis)]
            filled = b.emit(n, "Slice", (filled, *bounds))
        pads[at] = total - min(extent, total)
    b.sizes.give(filled, counts)
    static = b.constant(np.asarray(pads, np.int64), f"{x}_pads")
    _pad(b, replace(n, inputs=(filled, static, value)))


def _pad_by_numbers(b: Builder, n: OnnxNode) -> None:
    """The constant in place of what is not there comes before the constant behind it."""
    x = n.inputs[0]
    rank, counts = len(b.shape(x)), dict(b.sizes.of(x))
    pads = whole_numbers(b, n, 1, "pads") or ()
    axes = whole_numbers(b, n, 3, "axes")
    each = [a % rank for a in axes] if axes is not None else [*range(rank)]
    own = {a: (pads[k], pads[k + len(each)]) for k, a in enumerate(each) if a in counts} if pads else {}
    padded = [a for a, (before, after) in own.items() if before or after]
    if not padded:
        _pad(b, n)
        return
    value = b.data(n.input(2)) if n.input(2) else np.asarray(n.attrs.get("value", 0.0))
    if str(n.attrs.get("mode", "constant")) != "constant" or value is None or value.size != 1:
        raise refuse(n, x, padded[0], "it is padded otherwise than with a constant")
    if any(side < 0 for a in padded for side in own[a]):
        raise refuse(n, x, padded[0], "it is made shorter by pads")
    _pad(b, replace(n, inputs=(masked(b, n, x, padded, value.reshape(())), *n.inputs[1:])))
    unpadded = {a: c for a, c in counts.items() if a not in padded}
    b.sizes.give(n.outputs[0], {**unpadded, **{a: count_of(b, n, "Add", counts[a], sum(own[a])) for a in padded}})


def _counted_concat(b: Builder, n: OnnxNode) -> None:
    """Along such a dimension what is there of each part follows what is there of the one before it."""
    rank = len(b.shape(n.inputs[0]))
    axis = int(n.attrs.get("axis", 1)) % rank
    if not any(axis in b.sizes.of(x) for x in n.inputs):
        _concat(b, n)
        return
    parts = [whole(b, n, x, (axis,)) for x in n.inputs]
    extents = [b.shape(x)[axis] for x in n.inputs]
    every = b.emit(n, "Concat", parts, {"axis": axis})
    total = b.constant(np.zeros((), np.int64), f"{n.outputs[0]}_total")
    b.sizes.bounds[total] = 0
    room = sum(extents)
    at = b.constant(np.arange(room, dtype=np.int64), f"{n.outputs[0]}_at")
    place, start = at, 0
    for x, extent in zip(n.inputs, extents, strict=True):
        moved = b.emit(n, "Add", (b.emit(n, "Sub", (at, total)), b.constant(np.int64(start), f"{x}_start")))
        place = moved if not start else b.emit(n, "Where", (b.emit(n, "Less", (at, total)), place, moved))
        count = b.sizes.of(x).get(axis)
        total, start = count_of(b, n, "Add", total, extent if count is None else count), start + extent
    limit = b.constant(np.int64(room - 1), f"{n.outputs[0]}_last")
    b.emit(n, "Gather", (every, b.emit(n, "Min", (place, limit))), {"axis": axis}, n.outputs)
    b.sizes.give(n.outputs[0], {**b.sizes.of(every), axis: total})


FORMS = (
    Form("Split", _split),
    Form("Slice", _slice, _counted_slice),
    Form("Pad", _pad, _counted_pad),
    Form("Concat", _concat, _counted_concat),
)
