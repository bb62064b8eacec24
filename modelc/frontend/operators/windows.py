"""Convolutions, pools and Resize. Over a dimension whose size depends on data (sizes.py) what is not there is as what
they pad with, and there is as much of the result as the operator says of what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.composed import max_unpool
from modelc.frontend.building.sizes import count_of, less, masked, refuse
from modelc.frontend.operators.form import Form, forms, plain
from modelc.ir.expr import DTYPES
from modelc.ops.row import Row


def _int_list(n: OnnxNode, name: str, default: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(n.attrs.get(name) or default)
    if len(numbers) != len(default):
        raise n.fail(f"expected {len(default)} numbers in attribute {name}, found {list(numbers)}")
    return numbers


def windowed(b: Builder, n: OnnxNode) -> None:
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
        halves, rests = [t // 2 for t in totals], [t - t // 2 for t in totals]
        attrs["pads"] = tuple(halves + rests if mode == "SAME_UPPER" else rests + halves)
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


# --- where sizes depend on data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Along:
    """A window along one dimension: what it is padded with on both sides counts as `pads`."""

    stride: int
    reach: int  # from its first element to its last
    pads: int
    behind: int


def _counted_window(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    rank, counts = len(b.shape(x)) - 2, dict(b.sizes.of(x))
    axes = [k for k in counts if k >= 2]
    transposed = n.op == "ConvTranspose"
    own = {k: _along(b, n, k - 2, rank) for k in axes}
    _check(b, n, own)
    neutral = -np.inf if DTYPES[b.value(x).dtype].kind == "f" else np.iinfo(DTYPES[b.value(x).dtype]).min
    given = masked(b, n, x, axes, neutral if n.op == "MaxPool" else 0) if axes else x
    (plain if transposed else windowed)(b, replace(n, inputs=(given, *n.inputs[1:])))
    by_axis = dict(b.sizes.of(n.outputs[0]))
    for k, along in own.items():
        by_axis[k] = (_spread if transposed else _gathered)(b, n, counts[k], along)
    b.sizes.give(n.outputs[0], by_axis)


def _along(b: Builder, n: OnnxNode, k: int, rank: int) -> _Along:
    listed = n.attrs.get("kernel_shape")
    kernel = b.shape(n.inputs[1])[2 + k] if n.op.startswith("Conv") else int(listed[k]) if listed else 1
    stride, dilation = (int(_int_list(n, name, [1] * rank)[k]) for name in ("strides", "dilations"))
    reach, mode = dilation * (kernel - 1), str(n.attrs.get("auto_pad", "NOTSET"))
    if mode in ("SAME_UPPER", "SAME_LOWER") and n.op != "ConvTranspose" and stride == 1:
        return _Along(stride, reach, reach, (reach + (mode == "SAME_UPPER")) // 2)
    if mode not in ("NOTSET", "VALID"):
        raise refuse(n, n.inputs[0], k + 2, f"{mode} pads by it")
    pads = _int_list(n, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
    more = int(_int_list(n, "output_padding", [0] * rank)[k])
    return _Along(stride, reach + more, int(pads[k]) + int(pads[k + rank]), int(pads[k + rank]))


def _check(b: Builder, n: OnnxNode, own: Mapping[int, _Along]) -> None:
    for k, along in own.items():
        if n.attrs.get("ceil_mode", 0) or n.wants(1) or "output_shape" in n.attrs:
            raise refuse(n, n.inputs[0], k, "the node rounds up over it, or says its places or its size")
        if n.op == "AveragePool" and along.behind and not n.attrs.get("count_include_pad", 0):
            raise refuse(n, n.inputs[0], k, "means are taken of what is there of a window at its end")


def _gathered(b: Builder, n: OnnxNode, count: str, along: _Along) -> str:
    """One for every window that fits in."""
    more = along.pads - along.reach - 1 + along.stride
    wide = count_of(b, n, "Add", count, more) if more > 0 else less(b, n, count, -more)
    return count_of(b, n, "Div", wide, along.stride) if along.stride > 1 else wide


def _spread(b: Builder, n: OnnxNode, count: str, along: _Along) -> str:
    """A stride for every element, and what the last window reaches beyond."""
    wide = count_of(b, n, "Mul", count, along.stride) if along.stride > 1 else count
    more = along.reach + 1 - along.stride - along.pads
    return count_of(b, n, "Add", wide, more) if more > 0 else less(b, n, wide, -more)


FORMS = (
    *forms("Conv MaxPool AveragePool", windowed, _counted_window),
    Form("ConvTranspose", counted=_counted_window),
    Form("LpPool", windowed),
    Form("MaxUnpool", max_unpool),
    Form("Upsample", _upsample, row=Row("Upsample", steers={1: "the scales"})),
    Form("Resize", _resize),
)
