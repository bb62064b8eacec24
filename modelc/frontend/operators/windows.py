"""Convolutions and pools over a dimension whose size depends on data (sizes.py): what is not there is as what they pad
with, and there is as much of the result as the operator says of what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import count_of, less, masked, refuse
from modelc.frontend.operators.normalise import NORMALISERS, plain
from modelc.ir.expr import DTYPES

WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


@dataclass(frozen=True)
class _Along:
    """A window along one dimension: what it is padded with on both sides counts as `pads`."""

    stride: int
    reach: int  # from its first element to its last
    pads: int
    behind: int


def window(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    rank, counts = len(b.shape(x)) - 2, dict(b.sizes.of(x))
    axes = [k for k in counts if k >= 2]
    transposed = n.op == "ConvTranspose"
    own = {k: _along(b, n, k - 2, rank) for k in axes}
    _check(b, n, own)
    neutral = -np.inf if DTYPES[b.value(x).dtype].kind == "f" else np.iinfo(DTYPES[b.value(x).dtype]).min
    given = masked(b, n, x, axes, neutral if n.op == "MaxPool" else 0) if axes else x
    NORMALISERS.get(n.op, plain)(b, replace(n, inputs=(given, *n.inputs[1:])))
    by_axis = dict(b.sizes.of(n.outputs[0]))
    for k, along in own.items():
        by_axis[k] = (_spread if transposed else _gathered)(b, n, counts[k], along)
    b.sizes.give(n.outputs[0], by_axis)


def _along(b: Builder, n: OnnxNode, k: int, rank: int) -> _Along:
    listed = n.attrs.get("kernel_shape")
    kernel = b.shape(n.inputs[1])[2 + k] if n.op.startswith("Conv") else int(listed[k]) if listed else 1
    stride, dilation = (int(_numbers(n, name, [1] * rank)[k]) for name in ("strides", "dilations"))
    reach, mode = dilation * (kernel - 1), str(n.attrs.get("auto_pad", "NOTSET"))
    if mode in ("SAME_UPPER", "SAME_LOWER") and n.op != "ConvTranspose" and stride == 1:
        return _Along(stride, reach, reach, (reach + (mode == "SAME_UPPER")) // 2)
    if mode not in ("NOTSET", "VALID"):
        raise refuse(n, n.inputs[0], k + 2, f"{mode} pads by it")
    pads = _numbers(n, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
    more = int(_numbers(n, "output_padding", [0] * rank)[k])
    return _Along(stride, reach + more, int(pads[k]) + int(pads[k + rank]), int(pads[k + rank]))


def _numbers(n: OnnxNode, name: str, default: Sequence[int]) -> Sequence[int]:
    numbers: Sequence[int] = n.attrs.get(name, default)
    return numbers


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


__all__ = ["WINDOWS", "window"]
