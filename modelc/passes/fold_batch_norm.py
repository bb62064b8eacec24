"""Scales and shifts per channel go into the weights before them.

BatchNormalization(Conv(x, W, b))  ->  Conv(x, W', b')      also for ConvTranspose and Gemm
Conv(x, W) * s + t                 ->  Conv(x, W', t)       batch norm as some exporters write it
BatchNormalization(x)              ->  x * s + t            where there are no weights before it
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Node
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, RulePass

Array = NDArray[Any]
FLOATS = ("float32", "float64", "float16", "bfloat16")
LINEAR = Op("Conv|ConvTranspose|Gemm", Bind("x"), Constant("weights"), name="linear", more=True)
STATISTICS = (Constant("scale"), Constant("bias"), Constant("mean"), Constant("variance"))


def _affine(e: Editor, m: Match) -> tuple[Array, Array]:
    """Scale and shift of a BatchNormalization."""
    scale, bias, mean, variance = (np.asarray(e.data(m[c.name]), np.float64) for c in STATISTICS)
    factor = scale / np.sqrt(variance + m.root.attrs.get("epsilon", 1e-5))
    return factor, bias - mean * factor


def _per_channel(e: Editor, name: str, shape: tuple[int, ...]) -> Array | None:
    """A constant as a number per channel (dimension 1) of a tensor of `shape`; None if it differs within one."""
    data = e.data(name)
    if data is None or data.ndim > len(shape) or len(shape) < 2:
        return None
    aligned = (1,) * (len(shape) - data.ndim) + data.shape
    if any(d != 1 for k, d in enumerate(aligned) if k != 1) or aligned[1] not in (1, shape[1]):
        return None
    return np.broadcast_to(data.astype(np.float64).reshape(-1), shape[1:2])


def _scaled_weights(node: Node, weights: Array, factor: Array) -> Array:
    wide = weights.astype(np.float64)
    if node.op == "Conv":
        return wide * factor.reshape(-1, *[1] * (wide.ndim - 1))
    if node.op == "Gemm":
        return wide * (factor[:, None] if node.attrs.get("transB", 0) else factor)
    groups = node.attrs.get("group", 1)  # ConvTranspose: [channels in, channels out of a group, ...]
    split = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
    return (split * factor.reshape(groups, 1, -1, *[1] * (wide.ndim - 2))).reshape(wide.shape)


def _folded(e: Editor, m: Match, factor: Array | None, shift: Array) -> str | None:
    """The linear node with `y * factor + shift` (per channel) in its weights and bias; None if they do not take it."""
    node, weights = e.node(m["linear"]), e.array(m["weights"])
    dtype = e.value(m["weights"]).dtype
    old = node.inputs[2] if len(node.inputs) > 2 else ""
    if dtype not in FLOATS or e.shape(m["linear"]) != e.shape(m.root.outputs[0]):
        return None
    attrs: dict[str, Any] = {}
    bias: Array = np.zeros(shift.shape)
    if old:
        shape = e.shape(m["linear"]) if node.op == "Gemm" else (1, *shift.shape)
        old_bias = _per_channel(e, old, shape)
        if old_bias is None:
            return None
        bias = old_bias * node.attrs.get("beta", 1.0)
    if node.op == "Gemm" and node.attrs.get("beta", 1.0) != 1.0:
        attrs["beta"] = 1.0
    new = m["weights"]
    with np.errstate(over="ignore"):
        if factor is not None:
            scaled = _scaled_weights(node, weights, factor).astype(weights.dtype)
            bias = bias * factor
        total = (bias + shift).astype(weights.dtype)
    if not np.isfinite(total).all() or (factor is not None and not np.isfinite(scaled).all()):
        return None
    if factor is not None:
        new = e.constant(scaled, f"{m['weights']}_folded", dtype)
    return e.again(node, (m["x"], new, e.constant(total, f"{old or m['weights']}_bias", dtype)), attrs)


def _batch_norm(e: Editor, m: Match) -> str | None:
    return _folded(e, m, *_affine(e, m))


def _scale(e: Editor, m: Match) -> str | None:
    factor = _per_channel(e, m["factor"], e.shape(m["linear"]))
    if factor is None or (m.root.op == "Div" and not factor.all()):
        return None
    return _folded(e, m, 1.0 / factor if m.root.op == "Div" else factor, np.zeros(factor.shape))


def _shift(e: Editor, m: Match) -> str | None:
    shift = _per_channel(e, m["shift"], e.shape(m["linear"]))
    return None if shift is None else _folded(e, m, None, -shift if m.root.op == "Sub" else shift)


def _alone(e: Editor, m: Match) -> str | None:
    value = e.value(m["x"])
    if value.dtype not in FLOATS or len(value.shape) < 2:
        return None
    factor, shift = _affine(e, m)
    shape = (-1, *[1] * (len(value.shape) - 2))
    scaled = e.add("Mul", (m["x"], e.constant(factor.reshape(shape), f"{m['scale']}_factor", value.dtype)))
    return e.add("Add", (scaled, e.constant(shift.reshape(shape), f"{m['bias']}_shift", value.dtype)))


RULES = (
    Rule(Op("BatchNormalization", LINEAR, *STATISTICS), _batch_norm),
    Rule(Op("Mul", LINEAR, Constant("factor")), _scale),
    Rule(Op("Div", LINEAR, Constant("factor")), _scale),
    Rule(Op("Add", LINEAR, Constant("shift")), _shift),
    Rule(Op("Sub", LINEAR, Constant("shift")), _shift),
    Rule(Op("BatchNormalization", Bind("x"), *STATISTICS), _alone),
)


class FoldBatchNorm(RulePass):
    """Weights are multiplied in float64 and rounded once."""

    rules = RULES
