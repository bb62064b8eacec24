"""What operators become whose inputs have a size that depends on data (sizes.py), where more is to be done than to let
it through: sums take zeros in place of what is not there, indices count from the end that there is, and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.fold import folded
from modelc.frontend.building.merged import extended
from modelc.frontend.building.sizes import count_of, less, masked, refuse, rest_of, there, whole
from modelc.frontend.operators.addressed import gather, gather_elements, gather_nd, regions, scatter
from modelc.frontend.operators.normalise import NORMALISERS, Normaliser, plain
from modelc.frontend.operators.random import drawn_alike
from modelc.frontend.operators.ranges import ranged
from modelc.frontend.operators.recurrent import recurrent_sized
from modelc.frontend.operators.windows import WINDOWS, window
from modelc.ir.expr import DTYPES
from modelc.ops.found import ROOM

Array = NDArray[Any]
_MOVES = ("Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Identity", "Reshape", "Flatten", "Transpose", "Where")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Min", "Max")
MOST_NUMBERS = 64  # more than a shape has dimensions
Combine = Callable[[Builder, OnnxNode, int, int], int | bool | None]


def touched(b: Builder, n: OnnxNode) -> bool:
    """Whether something that the node takes depends in its size on data, or is such a size."""
    return any(b.sizes.of(x) or x in b.sizes.elements for x in n.inputs if x)


# --- sizes as numbers ---------------------------------------------------------------------------------------------


def numbers_of(b: Builder, n: OnnxNode) -> Array | None:
    """What the node makes of whole numbers among which sizes are, as such; None where that is not to be said."""
    inputs = [b.sizes.elements.get(x, b.data(x)) if x else None for x in n.inputs]
    if n.domain or any(x is None for x, name in zip(inputs, n.inputs, strict=True) if name):
        return None
    if not any(x in b.sizes.elements for x in n.inputs):
        return None
    if n.op == "Cast":
        return inputs[0] if DTYPES[n.attrs["to"]].kind in "iu" else None
    if n.op in _ARITHMETIC and len(inputs) == 2:
        return _pairwise(b, n, inputs, _result)
    if n.op == "Equal":
        return _pairwise(b, n, inputs, _equal)
    if n.op not in _MOVES:
        return None
    try:
        results = folded(b, n, NORMALISERS.get(n.op, plain), inputs)
    except ModelError:  # sizes steer it
        return None
    return None if results is None else results[0]


def _pairwise(b: Builder, n: OnnxNode, inputs: Sequence[Array | None], combine: Combine) -> Array | None:
    """Of a few numbers with a few others, each a count or a constant."""
    first, second = (x for x in inputs if x is not None)
    shape = np.broadcast_shapes(first.shape, second.shape)
    if first.dtype.kind not in "iu" or second.dtype.kind not in "iu" or prod(shape) > MOST_NUMBERS:
        return None
    pairs = zip(*(np.broadcast_to(x, shape).reshape(-1).tolist() for x in (first, second)), strict=True)
    combined = [combine(b, n, left, right) for left, right in pairs]
    return None if None in combined else np.asarray(combined).reshape(shape)


def _result(b: Builder, n: OnnxNode, first: int, second: int) -> int | None:
    """Of an operator on two numbers; None where it may be less than nothing."""
    count, other = b.sizes.marked(first), b.sizes.marked(second)
    if count is None and other is None:
        return _of_constants(n.op, first, second)
    if count is None and other is not None and n.op in ("Add", "Mul", "Min", "Max"):
        count, other, second = other, None, first
    if n.op == "Sub" and count is None and other is not None and first >= b.sizes.bounds[other]:
        return b.sizes.mark(rest_of(b, n, first, other))
    if (
        count is None
        or (other is None and second < 0)
        or (n.op in ("Sub", "Div") and (other is not None or not second))
    ):
        return None
    made = less(b, n, count, second) if n.op == "Sub" else count_of(b, n, n.op, count, other or second)
    return b.sizes.mark(made)


def _of_constants(op: str, first: int, second: int) -> int | None:
    if op == "Div":
        return None if first < 0 or second <= 0 else first // second
    results = {"Add": first + second, "Sub": first - second, "Mul": first * second}
    return (results | {"Min": min(first, second), "Max": max(first, second)})[op]


def _equal(b: Builder, n: OnnxNode, first: int, second: int) -> bool | None:
    """Whether two numbers are the same; None where data decides it."""
    counts = [c for c in (b.sizes.marked(first), b.sizes.marked(second)) if c is not None]
    if not counts or first == second:
        return first == second
    least = min(first, second)  # a count's mark is larger than any number
    return None if len(counts) == 2 or 0 <= least <= b.sizes.bounds[counts[0]] else False


def _shape(b: Builder, n: OnnxNode) -> None:
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


def _size(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    counts = b.sizes.of(x)
    total, *others = counts.values()
    for other in others:
        total = count_of(b, n, "Mul", total, other)
    fixed = prod(d for k, d in enumerate(b.shape(x)) if k not in counts)
    total = count_of(b, n, "Mul", total, fixed) if fixed != 1 else total
    b.emit(n, "Identity", (total,), outputs=n.outputs)
    b.sizes.elements[n.outputs[0]] = np.asarray(b.sizes.mark(total), np.int64)


def _steered(b: Builder, n: OnnxNode, k: int) -> tuple[OnnxNode, dict[int, str]]:
    """The node with the most that there can be in place of sizes in its input `k`, and where these were."""
    name = n.input(k)
    elements = b.sizes.elements.get(name)
    if elements is None:
        return n, {}
    marks = {at: c for at, x in enumerate(elements.reshape(-1)) if (c := b.sizes.marked(int(x))) is not None}
    inputs = list(n.inputs)
    inputs[k] = b.constant(b.sizes.bounded(elements), f"{name}_most")
    return replace(n, inputs=tuple(inputs)), marks


def _reshape(b: Builder, n: OnnxNode) -> None:
    """A dimension that depends on data has to be said as one that does: by a size, by -1, or by the 0 that keeps it."""
    x = n.inputs[0]
    steered, marks = _steered(b, n, 1)
    wanted = b.data(steered.input(1)) if steered.input(1) else np.asarray(n.attrs.get("shape", ()), np.int64)
    NORMALISERS["Reshape"](b, steered)
    counts = b.sizes.of(n.outputs[0])
    for axis, count in counts.items():
        free = wanted is not None and int(wanted.reshape(-1)[axis]) in (-1, 0)
        if not free and marks.get(axis) != count:
            raise refuse(n, x, _axis_of_count(b, x), f"the shape asks for {b.shape(n.outputs[0])[axis]} of it")
    if lost := marks.keys() - counts.keys():
        raise n.fail(f"expected the size at {min(lost)} of the shape to be that of a dimension of {x!r}")


def _axis_of_count(b: Builder, x: str) -> int:
    return min(b.sizes.of(x), default=0)


def _expand(b: Builder, n: OnnxNode) -> None:
    steered, marks = _steered(b, n, 1)
    plain(b, steered)
    _agree(b, n, marks)


def _constant_of_shape(b: Builder, n: OnnxNode) -> None:
    steered, marks = _steered(b, n, 0)
    NORMALISERS["ConstantOfShape"](b, steered)
    _agree(b, n, marks)


def _agree(b: Builder, n: OnnxNode, marks: Mapping[int, str]) -> None:
    """Gives the output the sizes that its shape was made of."""
    output = n.outputs[0]
    counts = dict(b.sizes.of(output))
    if other := [k for k, c in marks.items() if counts.get(k, c) != c]:
        raise refuse(n, n.inputs[0], other[0], "the shape asks for another")
    b.sizes.give(output, {**counts, **marks})


# --- parts --------------------------------------------------------------------------------------------------------


def _slice(b: Builder, n: OnnxNode) -> None:
    """From a constant on, in steps of 1, to a constant, or to a size that depends on data."""
    x = n.inputs[0]
    shape, counts, room = b.shape(x), dict(b.sizes.of(x)), list(b.shape(x))
    (n, _), (ends_node, marks) = _steered(b, n, 1), _steered(b, n, 2)
    starts, ends = (_numbers(b, ends_node, k, name) for k, name in ((1, "starts"), (2, "ends")))
    if starts is None or ends is None or n.inputs[1] != ends_node.inputs[1]:
        raise n.fail("expected constants as starts, found sizes that depend on data")
    axes = [a % len(shape) for a in _numbers(b, n, 3, "axes") or range(len(starts))]
    steps = _numbers(b, n, 4, "steps") or [1] * len(starts)
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


def _numbers(b: Builder, n: OnnxNode, k: int, attr: str) -> list[int] | None:
    """Constants that are an input, or an attribute in older operator sets."""
    numbers = b.steering(n, k, attr) if n.input(k) else n.attrs.get(attr)
    return None if numbers is None else [int(x) for x in np.asarray(numbers).reshape(-1)]


def _pad(b: Builder, n: OnnxNode) -> None:
    """What is there filled up to a number of elements that is known, as detectors hand out their boxes: the size to pad
    by is the rest of that number."""
    x = n.inputs[0]
    steered, marks = _steered(b, n, 1)
    if not marks:
        _pad_by_numbers(b, n)
        return
    rank, dtype = len(b.shape(x)), b.value(x).dtype
    pads = _numbers(b, steered, 1, "pads") or []
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
    NORMALISERS["Pad"](b, replace(n, inputs=(filled, static, value)))


def _pad_by_numbers(b: Builder, n: OnnxNode) -> None:
    """The constant in place of what is not there comes before the constant behind it."""
    x = n.inputs[0]
    rank, counts = len(b.shape(x)), dict(b.sizes.of(x))
    pads = _numbers(b, n, 1, "pads") or []
    axes = _numbers(b, n, 3, "axes")
    each = [a % rank for a in axes] if axes is not None else [*range(rank)]
    own = {a: (pads[k], pads[k + len(each)]) for k, a in enumerate(each) if a in counts} if pads else {}
    padded = [a for a, (before, after) in own.items() if before or after]
    if not padded:
        NORMALISERS["Pad"](b, n)
        return
    value = b.data(n.input(2)) if n.input(2) else np.asarray(n.attrs.get("value", 0.0))
    if str(n.attrs.get("mode", "constant")) != "constant" or value is None or value.size != 1:
        raise refuse(n, x, padded[0], "it is padded otherwise than with a constant")
    if any(side < 0 for a in padded for side in own[a]):
        raise refuse(n, x, padded[0], "it is made shorter by pads")
    NORMALISERS["Pad"](b, replace(n, inputs=(masked(b, n, x, padded, value.reshape(())), *n.inputs[1:])))
    unpadded = {a: c for a, c in counts.items() if a not in padded}
    b.sizes.give(n.outputs[0], {**unpadded, **{a: count_of(b, n, "Add", counts[a], sum(own[a])) for a in padded}})


def _concat(b: Builder, n: OnnxNode) -> None:
    """Along such a dimension what is there of each part follows what is there of the one before it."""
    rank = len(b.shape(n.inputs[0]))
    axis = int(n.attrs.get("axis", 1)) % rank
    if not any(axis in b.sizes.of(x) for x in n.inputs):
        NORMALISERS["Concat"](b, n)
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


# --- sums, orders -------------------------------------------------------------------------------------------------


def _least(dtype: str) -> Any:
    kind = DTYPES[dtype]
    return False if dtype == "bool" else np.iinfo(kind).min if kind.kind in "iu" else -np.inf


def _most(dtype: str) -> Any:
    kind = DTYPES[dtype]
    return True if dtype == "bool" else np.iinfo(kind).max if kind.kind in "iu" else np.inf


def _reduced_axes(b: Builder, n: OnnxNode) -> set[int]:
    rank = len(b.shape(n.inputs[0]))
    axes = _numbers(b, n, 1, "axes")
    if not axes:
        return set() if n.attrs.get("noop_with_empty_axes", 0) else set(range(rank))
    return {a % rank for a in axes}


def _reduction(b: Builder, n: OnnxNode) -> None:
    x, axes = n.inputs[0], _reduced_axes(b, n)
    dtype, counts = b.value(x).dtype, b.sizes.of(x)
    kind = n.op.removeprefix("Reduce")
    neutral = {"Max": _least(dtype), "Min": _most(dtype), "Prod": 1, "LogSumExp": _least(dtype)}.get(kind, 0)
    inputs = (masked(b, n, x, axes, neutral), *n.inputs[1:])
    there_ = [counts[k] for k in sorted(axes) if k in counts]
    if kind != "Mean" or not there_:
        NORMALISERS[n.op](b, replace(n, inputs=inputs))
        return
    total = b.fresh(f"{n.outputs[0]}_total")
    NORMALISERS["ReduceSum"](b, replace(n, op="ReduceSum", inputs=inputs, outputs=(total,)))
    count = there_[0]
    for other in there_[1:]:
        count = count_of(b, n, "Mul", count, other)
    fixed = prod(b.shape(x)[k] for k in axes if k not in counts)
    count = count_of(b, n, "Max", count_of(b, n, "Mul", count, fixed), 1)
    b.emit(n, "Div", (total, b.emit(n, "Cast", (count,), {"to": dtype})), outputs=n.outputs)


def _along(op_neutral: str, default: int) -> Normaliser:
    """An operator along `axis` that gives as many elements as it takes: the others are masked."""

    def normalise(b: Builder, n: OnnxNode) -> None:
        x = n.inputs[0]
        shape, counts = b.shape(x), dict(b.sizes.of(x))
        if n.op == "CumSum":
            data = b.steering(n, 1, "axis")
            axis = int(np.asarray(data).reshape(-1)[0]) % len(shape)
        else:
            axis = int(n.attrs.get("axis", default if n.version >= 13 else 1)) % len(shape)
            if n.version < 13 and counts.keys() & {*range(axis, len(shape))} and prod(shape[axis + 1 :]) != 1:
                raise refuse(n, x, min(counts), "it is flattened with others")
        neutral = 0 if op_neutral == "zero" else _least(b.value(x).dtype)
        given = masked(b, n, x, (axis,), neutral)
        NORMALISERS.get(n.op, plain)(b, replace(n, inputs=(given, *n.inputs[1:])))
        b.sizes.give(n.outputs[0], counts)

    return normalise


def _arg(b: Builder, n: OnnxNode) -> None:
    """The first of the best: what is not there comes after all that is."""
    x = n.inputs[0]
    axis, dtype = int(n.attrs.get("axis", 0)) % len(b.shape(x)), b.value(x).dtype
    if axis in b.sizes.of(x) and n.attrs.get("select_last_index", 0):
        raise refuse(n, x, axis, "the last of the best is asked for")
    given = masked(b, n, x, (axis,), _least(dtype) if n.op == "ArgMax" else _most(dtype))
    plain(b, replace(n, inputs=(given,)))


def _top_k(b: Builder, n: OnnxNode) -> None:
    """As many as there are, and as are asked for, which may depend on data too."""
    x = n.inputs[0]
    shape, counts, dtype = b.shape(x), dict(b.sizes.of(x)), b.value(x).dtype
    axis = int(n.attrs.get("axis", -1)) % len(shape)
    elements = b.sizes.elements.get(n.input(1))
    asked = b.sizes.marked(int(elements.reshape(-1)[0])) if elements is not None and elements.size == 1 else None
    most = shape[axis]
    if asked is None:
        wanted = _numbers(b, n, 1, "k")
        if wanted is None or axis not in counts:
            plain_top = NORMALISERS["TopK"]
            plain_top(b, n)
            return
        most = max(min(wanted[0], most), min(ROOM, most))
        count = count_of(b, n, "Min", counts[axis], wanted[0])
    else:
        most = max(min(b.sizes.bounds[asked], most), min(ROOM, most))
        count = asked if axis not in counts else count_of(b, n, "Min", asked, counts[axis])
        count = count_of(b, n, "Min", count, shape[axis]) if b.sizes.bounds[count] > shape[axis] else count
    if most < ROOM:
        raise refuse(n, x, axis, "it has one element at most")
    given = masked(b, n, x, (axis,), _least(dtype) if n.attrs.get("largest", 1) else _most(dtype))
    attrs = {k: v for k, v in n.attrs.items() if k != "k"}
    b.emit(n, "TopK", (given, b.constant(np.asarray([most], np.int64), f"{x}_k")), attrs, n.outputs)
    for output in n.outputs:
        if output:
            b.sizes.give(output, {**counts, axis: count})


def _product(b: Builder, n: OnnxNode) -> None:
    """Zeros in place of what is not there add nothing."""
    first, second = n.inputs
    inner = max(len(b.shape(second)) - 2, 0)
    last = len(b.shape(first)) - 1
    if b.sizes.of(first).get(last) is None and b.sizes.of(second).get(inner) is None:
        plain(b, n)
        return
    if b.sizes.of(first).get(last) != b.sizes.of(second).get(inner):
        raise refuse(n, first if last in b.sizes.of(first) else second, 0, "it is multiplied by another")
    inputs = (masked(b, n, first, (last,), 0), masked(b, n, second, (inner,), 0))
    plain(b, replace(n, inputs=inputs))


def _no_size(b: Builder, n: OnnxNode) -> None:
    """Operators that take the shape of their input for the one of their result."""
    value = next(x for x in n.inputs if x)
    raise refuse(n, value, _axis_of_count(b, value), "the node makes a tensor of its size")


def _tile(b: Builder, n: OnnxNode) -> None:
    """What is repeated as often as data says comes first in what is repeated as often as can be."""
    x = n.inputs[0]
    steered, marks = _steered(b, n, 1)
    repeats = _numbers(b, steered, 1, "repeats")
    counts, shape = dict(b.sizes.of(x)), b.shape(x)
    if repeats is None or len(repeats) != len(shape):
        raise n.fail(f"expected {len(shape)} repeats that are known, or sizes")
    if other := [k for k in counts if repeats[k] != 1]:
        raise refuse(n, x, other[0], "it is repeated")
    plain(b, replace(steered, inputs=(whole(b, n, x), *steered.inputs[1:])))
    own = {k: count_of(b, n, "Mul", c, shape[k]) if shape[k] != 1 else c for k, c in marks.items()}
    b.sizes.give(n.outputs[0], {**counts, **own})


def _dropout(b: Builder, n: OnnxNode) -> None:
    (_no_size if n.wants(1) else NORMALISERS["Dropout"])(b, n)


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
RULES: dict[str, Normaliser] = {
    "Shape": _shape,
    "Size": _size,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": ranged,
    "Slice": _slice,
    "Pad": _pad,
    "Concat": _concat,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "RoiAlign": regions,
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), scatter),
    **{f"Reduce{name}": _reduction for name in _REDUCTIONS},
    **dict.fromkeys(("Softmax", "LogSoftmax"), _along("least", -1)),
    "CumSum": _along("zero", 0),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "TopK": _top_k,
    "MatMul": _product,
    **dict.fromkeys(("RandomNormal", "RandomUniform", "EyeLike"), _no_size),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), drawn_alike),
    "Tile": _tile,
    **dict.fromkeys(WINDOWS, window),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent_sized),
    "Dropout": _dropout,
}
