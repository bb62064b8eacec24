"""Operators of every operator set in one form: that of the newest set, shapes resolved.

Each entry of NORMALISERS says what one ONNX operator becomes; operators without an entry go into the Graph as they
are. What changes shapes alone (Flatten, Squeeze, Unsqueeze, Reshape) becomes a Reshape to a constant shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.composed import batch_normalization_in_training, max_unpool, roi_align
from modelc.frontend.building.sliding import sliding
from modelc.frontend.operators.finding import compress, non_max_suppression, non_zero, unique
from modelc.frontend.operators.random import ONNX_DRAWS, drawn
from modelc.frontend.operators.ranges import ranged
from modelc.frontend.operators.recurrent import recurrent
from modelc.ir.expr import DTYPES, NARROW_FLOATS
from modelc.ops.row import Row

MOST_OPERANDS = 16  # of one Sum, Mean, Max or Min
Normaliser = Callable[[Builder, OnnxNode], None]


def plain(b: Builder, n: OnnxNode) -> None:
    """The node as it is."""
    b.emit(n, n.op, n.inputs, n.attrs, n.outputs)


def _int_list(n: OnnxNode, name: str, default: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(n.attrs.get(name) or default)
    if len(numbers) != len(default):
        raise n.fail(f"expected {len(default)} numbers in attribute {name}, found {list(numbers)}")
    return numbers


def _without(n: OnnxNode, *names: str) -> dict[str, Any]:
    return {k: v for k, v in n.attrs.items() if k not in names}


def _ints(b: Builder, n: OnnxNode, k: int, attr: str) -> tuple[int, ...] | None:
    """Whole numbers that are input `k` in newer operator sets and an attribute in older ones."""
    data = b.steering(n, k, attr)
    if data is not None:
        return tuple(int(i) for i in data.reshape(-1))
    numbers = n.attrs.get(attr)
    return None if numbers is None else tuple(int(i) for i in np.asarray(numbers).reshape(-1))


def _axes(n: OnnxNode, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    if any(not -rank <= a < rank for a in axes):
        raise n.fail(f"expected axes within {rank} dimensions, found {list(axes)}")
    return tuple(a + rank if a < 0 else a for a in axes)


def _moved_to_inputs(*attrs: tuple[int, str, str]) -> Normaliser:
    """Attributes that newer sets have as inputs: (position, name, dtype; "like" for the dtype of the first input)."""

    def normalise(b: Builder, n: OnnxNode) -> None:
        inputs = list(n.inputs)
        for k, name, dtype in attrs:
            if name in n.attrs and not n.input(k):
                inputs += [""] * (k + 1 - len(inputs))
                kind = b.value(n.inputs[0]).dtype if dtype == "like" else dtype
                data = np.asarray(n.attrs[name]).astype(DTYPES[kind])
                inputs[k] = b.constant(data if dtype == "like" else data.reshape(-1), f"{n.outputs[0]}_{name}")
        b.emit(n, n.op, inputs, _without(n, *(name for _, name, _ in attrs)), n.outputs)

    return normalise


# --- shapes -------------------------------------------------------------------------------------------------------


def _reshape(b: Builder, n: OnnxNode) -> None:
    wanted = _ints(b, n, 1, "shape")
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
    axes = _ints(b, n, 1, "axes")
    gone = _axes(n, axes, len(shape)) if axes is not None else [k for k, d in enumerate(shape) if d == 1]
    if any(shape[a] != 1 for a in gone):
        raise n.fail(f"expected dimensions of extent 1 at axes {list(gone)}, found {list(shape)}")
    b.reshape(n, n.inputs[0], [d for k, d in enumerate(shape) if k not in gone], n.outputs[0])


def _unsqueeze(b: Builder, n: OnnxNode) -> None:
    axes = _ints(b, n, 1, "axes")
    if axes is None:
        raise n.fail("expected axes, found none")
    shape = list(b.shape(n.inputs[0]))
    new = _axes(n, axes, len(shape) + len(axes))
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


def _split(b: Builder, n: OnnxNode) -> None:
    """With explicit sizes."""
    shape = b.shape(n.inputs[0])
    (axis,) = _axes(n, (n.attrs.get("axis", 0),), len(shape))
    sizes = _ints(b, n, 1, "split")
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
    pads = _ints(b, n, 1, "paddings" if n.version < 2 else "pads")
    if pads is None:
        raise n.fail("expected pads, found none")
    x = b.value(n.inputs[0])
    inputs = [n.inputs[0], b.constant(np.asarray(pads, np.int64), f"{n.outputs[0]}_pads"), n.input(2), n.input(3)]
    if n.version < 11 and n.attrs.get("value", 0.0) != 0.0:
        inputs[2] = b.constant(np.asarray(n.attrs["value"]).astype(DTYPES[x.dtype]), f"{n.outputs[0]}_value")
    b.emit(n, "Pad", inputs, _without(n, "pads", "paddings", "value"), n.outputs)


def _slice(b: Builder, n: OnnxNode) -> None:
    if sliding(b, n):
        return
    starts, ends = _ints(b, n, 1, "starts"), _ints(b, n, 2, "ends")
    if starts is None or ends is None:
        raise n.fail("expected starts and ends, found none")
    axes = _ints(b, n, 3, "axes") or tuple(range(len(starts)))
    steps = _ints(b, n, 4, "steps") or (1,) * len(starts)
    parts = [
        b.constant(np.asarray(v, np.int64), f"{n.outputs[0]}_{name}")
        for name, v in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps))
    ]
    b.emit(n, "Slice", (n.inputs[0], *parts), {}, n.outputs)


# --- arithmetic ---------------------------------------------------------------------------------------------------


def _aligned(b: Builder, n: OnnxNode) -> None:
    """Before operator set 7 the second operand was aligned at `axis` if `broadcast` was set."""
    a, second = n.inputs[0], n.input(1)
    shape, other = b.shape(a), b.shape(second)
    if n.version < 7 and n.attrs.get("broadcast", 0) and "axis" in n.attrs and len(other) < len(shape):
        (axis,) = _axes(n, (n.attrs["axis"],), len(shape))
        second = b.reshape(n, second, (*other, *[1] * (len(shape) - axis - len(other))))
    b.emit(n, n.op, (a, second), _without(n, "axis", "broadcast"), n.outputs)


def _variadic(b: Builder, n: OnnxNode) -> None:
    """Many operands are taken in turns, so that no expression is deep."""
    if len(n.inputs) <= MOST_OPERANDS:
        b.emit(n, n.op, n.inputs, _without(n, "axis", "broadcast"), n.outputs)
        return
    op = "Sum" if n.op == "Mean" else n.op
    result, operands = n.inputs[0], n.inputs[1:]
    for k in range(0, len(operands), MOST_OPERANDS - 1):
        last = op == n.op and k + MOST_OPERANDS - 1 >= len(operands)
        result = b.emit(n, op, (result, *operands[k : k + MOST_OPERANDS - 1]), {}, n.outputs if last else None)
    if op != n.op:
        count = b.constant(len(n.inputs), f"{n.outputs[0]}_count", b.value(result).dtype)
        b.emit(n, "Div", (result, count), {}, n.outputs)


def _prelu(b: Builder, n: OnnxNode) -> None:
    """Before operator set 7 a slope of one dimension was per channel."""
    slope, rank = b.shape(n.inputs[1]), len(b.shape(n.inputs[0]))
    second = n.inputs[1]
    if n.version < 7 and len(slope) == 1 and slope[0] > 1:
        second = b.reshape(n, second, (*slope, *[1] * (rank - 2)))
    b.emit(n, "PRelu", (n.inputs[0], second), {}, n.outputs)


def _softmax(b: Builder, n: OnnxNode) -> None:
    """Before operator set 13: over all the dimensions from `axis` on, flattened."""
    shape = b.shape(n.inputs[0])
    if n.version >= 13:
        b.emit(n, n.op, n.inputs, {"axis": n.attrs.get("axis", -1)}, n.outputs)
        return
    (axis,) = _axes(n, (n.attrs.get("axis", 1),), len(shape)) if len(shape) != 1 else (0,)
    if prod(shape[axis + 1 :]) == 1:
        b.emit(n, n.op, n.inputs, {"axis": axis}, n.outputs)
        return
    flat = b.reshape(n, n.inputs[0], (prod(shape[:axis]), prod(shape[axis:])))
    b.reshape(n, b.emit(n, n.op, (flat,), {"axis": 1}), shape, n.outputs[0])


def _batch_normalization(b: Builder, n: OnnxNode) -> None:
    training = n.attrs.get("training_mode", 0) or (n.version < 7 and not n.attrs.get("is_test", 0) and n.wants(1))
    if n.version >= 14 and training:
        batch_normalization_in_training(b, n)
        return
    if training or any(n.outputs[1:]):
        raise n.fail("this is batch normalisation in training mode; export the model for inference")
    if n.attrs.get("spatial", 1) != 1:
        raise n.fail("expected spatial=1, found statistics per element")
    b.emit(n, n.op, n.inputs, {"epsilon": n.attrs.get("epsilon", 1e-5)}, n.outputs[:1])


def _group_normalization(b: Builder, n: OnnxNode) -> None:
    """Before operator set 21 scale and bias were per group."""
    channels, groups = b.shape(n.inputs[0])[1], n.attrs.get("num_groups", 0)
    inputs = list(n.inputs)
    if n.version < 21 and groups and groups != channels:
        for k in (1, 2):
            data = b.data(inputs[k])
            if data is not None:
                b.make_room(n, channels * data.itemsize)
                inputs[k] = b.constant(np.repeat(data, channels // groups), f"{inputs[k]}_per_channel")
                continue
            column = b.reshape(n, inputs[k], (groups, 1))
            target = b.constant(np.asarray((groups, channels // groups), np.int64), f"{inputs[k]}_groups")
            inputs[k] = b.reshape(n, b.emit(n, "Expand", (column, target)), (channels,))
    b.emit(n, n.op, inputs, n.attrs, n.outputs)


def _gemm(b: Builder, n: OnnxNode) -> None:
    b.emit(n, n.op, n.inputs, _without(n, "broadcast"), n.outputs)


# --- windows ------------------------------------------------------------------------------------------------------


def _windowed(b: Builder, n: OnnxNode) -> None:
    """Padding in numbers instead of auto_pad; `kernel_shape` of a convolution is its weights' shape."""
    attrs = dict(n.attrs)
    space = b.shape(n.inputs[0])[2:]
    rank = len(space)
    kernel = b.shape(n.inputs[1])[2:] if n.op == "Conv" else _int_list(n, "kernel_shape", [0] * rank)
    if len(kernel) != rank:
        raise n.fail(f"expected a kernel of {rank} spatial dimensions as the input, found {list(kernel)}")
    if n.op == "Conv" and _int_list(n, "kernel_shape", kernel) != kernel:
        raise n.fail(f"expected kernel_shape {list(kernel)} as its weights, found {list(n.attrs['kernel_shape'])}")
    mode = attrs.pop("auto_pad", "NOTSET")
    strides, dilations = _int_list(n, "strides", [1] * rank), _int_list(n, "dilations", [1] * rank)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
            for extent, s, d, k in zip(space, strides, dilations, kernel, strict=True)
        ]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        attrs["pads"] = tuple(less + more if mode == "SAME_UPPER" else more + less)
    elif mode == "VALID":
        attrs["pads"] = (0,) * 2 * rank
    elif mode != "NOTSET":
        raise n.fail(f"expected auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {mode!r}")
    else:
        attrs["pads"] = _int_list(n, "pads", [0] * 2 * rank)
    attrs |= {"strides": strides, "dilations": dilations, "kernel_shape": tuple(kernel)}
    outputs = n.outputs if n.wants(1) else n.outputs[:1]
    b.emit(n, n.op, n.inputs, attrs, outputs)


def _upsample(b: Builder, n: OnnxNode) -> None:
    """Resize as Upsample and the first Resize did it: coordinates divided by the scale, rounded down."""
    if "width_scale" in n.attrs:  # operator set 1
        scales = (1.0, 1.0, n.attrs.get("height_scale", 1.0), n.attrs["width_scale"])
    else:
        data = b.steering(n, 1, "scales")
        scales = tuple(data.tolist()) if data is not None else tuple(n.attrs.get("scales", ()))
    if len(scales) != len(b.shape(n.inputs[0])):
        raise n.fail(f"expected a scale for each of {len(b.shape(n.inputs[0]))} dimensions, found {list(scales)}")
    mode = str(n.attrs.get("mode", "nearest")).replace("bilinear", "linear")
    attrs = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    given = b.constant(np.asarray(scales, np.float32), f"{n.outputs[0]}_scales")
    b.emit(n, "Resize", (n.inputs[0], "", given), attrs, n.outputs)


def _resize(b: Builder, n: OnnxNode) -> None:
    if n.version < 11:
        _upsample(b, n)
        return
    inputs = list(n.inputs)
    for k in (1, 2, 3):  # an empty tensor is an absent one
        data = b.data(n.input(k)) if n.input(k) else None
        if data is not None and data.size == 0:
            inputs[k] = ""
    attrs = dict(n.attrs)
    if attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize" and len(inputs) > 1:
        inputs[1] = ""
    if attrs.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":  # operator set 11 only
        raise n.fail("expected a coordinate transformation of operator set 13 or newer, found tf_half_pixel_for_nn")
    b.emit(n, "Resize", inputs, attrs, n.outputs)


# --- others -------------------------------------------------------------------------------------------------------


def _cast(b: Builder, n: OnnxNode) -> None:
    """How out of range numbers are rounded is a matter of narrow floats alone."""
    to = n.attrs.get("to") if n.op == "Cast" else b.value(n.inputs[1]).dtype
    attrs = n.attrs if to in NARROW_FLOATS else _without(n, "saturate", "round_mode")
    b.emit(n, n.op, n.inputs, attrs, n.outputs)


def _scatter(b: Builder, n: OnnxNode) -> None:
    b.emit(n, "ScatterElements", n.inputs, n.attrs, n.outputs)


def _layer_normalization(b: Builder, n: OnnxNode) -> None:
    """Mean and inverse deviation are float32, also of float64."""
    statistics = n.outputs[1:] if any(n.outputs[1:]) else ()
    computed = statistics
    if b.value(n.inputs[0]).dtype == "float64":
        computed = tuple(b.fresh(f"{name}_wide") if name else "" for name in statistics)
    b.emit(n, n.op, n.inputs, _without(n, "stash_type"), (n.outputs[0], *computed))
    for name, wide in zip(statistics, computed, strict=True):
        if wide != name:
            b.emit(n, "Cast", (wide,), {"to": "float32"}, (name,))


_reduction = _moved_to_inputs((1, "axes", "int64"))
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_ALIGNED = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")

ROWS = (Row("Upsample", steers={1: "the scales"}),)  # of operators that others take the place of
NORMALISERS: dict[str, Normaliser] = {
    **dict.fromkeys(ONNX_DRAWS, drawn),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Dropout": _dropout,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": ranged,
    "Split": _split,
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
    **{name: _aligned for name in _ALIGNED},
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), _variadic),
    "PRelu": _prelu,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "Gemm": _gemm,
    "Conv": _windowed,
    "MaxPool": _windowed,
    "AveragePool": _windowed,
    "LpPool": _windowed,
    "Upsample": _upsample,
    "Resize": _resize,
    "Cast": _cast,
    "MaxUnpool": max_unpool,
    "NonZero": non_zero,
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
    "Unique": unique,
    "RoiAlign": roi_align,
    "Scatter": _scatter,
    "Clip": _moved_to_inputs((1, "min", "like"), (2, "max", "like")),
    "TopK": _moved_to_inputs((1, "k", "int64")),
    **{f"Reduce{name}": _reduction for name in _REDUCTIONS},
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
}
