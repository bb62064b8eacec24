"""Operators that are several others, where ONNX gives no body for them."""

from __future__ import annotations

from math import prod

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.expr import DTYPES

MODES_SINCE = 16  # operator set from which RoiAlign says how regions and pixels are aligned


def batch_normalization_in_training(b: Builder, n: OnnxNode) -> None:
    """By the batch's own mean and variance; the running ones move towards them by 1 - momentum."""
    x, scale, bias, *running = n.inputs
    shape, dtype = b.shape(x), b.value(x).dtype

    def c(value: float, like: str) -> str:
        return b.constant(np.asarray(value, DTYPES[b.value(like).dtype]), f"{n.outputs[0]}_constant")

    def over_channels(name: str) -> str:
        return b.reshape(n, name, (-1 if not shape else shape[1], *[1] * (len(shape) - 2)))

    axes = b.constant(np.array([k for k in range(len(shape)) if k != 1], np.int64), f"{n.outputs[0]}_axes")
    mean = b.emit(n, "ReduceMean", (x, axes), {"keepdims": 1})
    centred = b.emit(n, "Sub", (x, mean))
    variance = b.emit(n, "ReduceMean", (b.emit(n, "Mul", (centred, centred)), axes), {"keepdims": 1})
    deviation = b.emit(n, "Sqrt", (b.emit(n, "Add", (variance, c(n.attrs.get("epsilon", 1e-5), x))),))
    normal = b.emit(n, "Div", (centred, deviation))
    scaled = b.emit(n, "Mul", (normal, over_channels(_as(b, n, scale, dtype))))
    b.emit(n, "Add", (scaled, over_channels(_as(b, n, bias, dtype))), {}, n.outputs[:1])
    momentum = float(n.attrs.get("momentum", 0.9))
    for k, (old, new) in enumerate(zip(running, (mean, variance), strict=True), 1):
        if n.wants(k):
            flat = b.reshape(n, _as(b, n, new, b.value(old).dtype), (shape[1],))
            kept = b.emit(n, "Mul", (old, c(momentum, old)))
            b.emit(n, "Add", (kept, b.emit(n, "Mul", (flat, c(1 - momentum, old)))), {}, n.outputs[k : k + 1])


def _as(b: Builder, n: OnnxNode, x: str, dtype: str) -> str:
    return x if b.value(x).dtype == dtype else b.emit(n, "Cast", (x,), {"to": dtype})


def max_unpool(b: Builder, n: OnnxNode) -> None:
    """Elements go back to where MaxPool's indices say, in a tensor of zeros; `output_shape` adds zeros behind."""
    x, shape = n.inputs[0], b.shape(n.inputs[0])
    kernel = tuple(n.attrs.get("kernel_shape") or ())
    rank = len(shape) - 2
    strides, pads = (tuple(n.attrs.get(a) or [d] * c) for a, d, c in (("strides", 1, rank), ("pads", 0, 2 * rank)))
    if rank < 1 or len(kernel) != rank or len(strides) != rank or len(pads) != 2 * rank:
        raise n.fail(f"expected kernel_shape, strides and pads for {rank} spatial dimensions, found others")
    space = [(shape[2 + k] - 1) * strides[k] - pads[k] - pads[rank + k] + kernel[k] for k in range(rank)]
    if min(space) < 1:
        raise n.fail(f"expected an output of at least one element per dimension, found {space}")
    inferred = (*shape[:2], *space)
    size = b.constant(np.array([prod(inferred)], np.int64), f"{n.outputs[0]}_size")
    zero = b.constant(np.zeros((), DTYPES[b.value(x).dtype]), f"{n.outputs[0]}_zero")
    zeros = b.emit(n, "Expand", (zero, size))
    index = b.reshape(n, n.inputs[1], (prod(shape),))
    flat = b.emit(n, "ScatterElements", (zeros, index, b.reshape(n, x, (prod(shape),))), {"axis": 0})
    wanted = b.steering(n, 2, "output_shape")
    whole = inferred if wanted is None else tuple(int(d) for d in wanted)
    if len(whole) != len(inferred) or any(a < c for a, c in zip(whole, inferred, strict=True)):
        raise n.fail(f"expected an output_shape of at least {list(inferred)}, found {list(whole)}")
    if whole == inferred:
        b.reshape(n, flat, inferred, n.outputs[0])
        return
    more = np.array([*[0] * len(whole), *(a - c for a, c in zip(whole, inferred, strict=True))], np.int64)
    given = (b.reshape(n, flat, inferred), b.constant(more, f"{n.outputs[0]}_more"))
    b.emit(n, "Pad", given, {"mode": "constant"}, n.outputs)


def roi_align(b: Builder, n: OnnxNode) -> None:
    """Narrow floats are computed in float32."""
    mode = n.attrs.get("coordinate_transformation_mode", "half_pixel")
    attrs = {**n.attrs, "coordinate_transformation_mode": mode if n.version >= MODES_SINCE else "output_half_pixel"}
    x, rois, batch = n.inputs
    dtype = b.value(x).dtype
    if dtype not in ("float16", "bfloat16"):
        b.emit(n, n.op, n.inputs, attrs, n.outputs)
        return
    wide = b.emit(n, n.op, (_as(b, n, x, "float32"), _as(b, n, rois, "float32"), batch), attrs)
    b.emit(n, "Cast", (wide,), {"to": dtype}, n.outputs)
