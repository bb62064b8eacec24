"""Where the numbers of a value lie, whatever the model's data: what operators say of their results. It is how computed
sizes get a bound (bounded.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, floor, inf, isnan, prod, sqrt, trunc
from typing import TYPE_CHECKING

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Node

if TYPE_CHECKING:
    from modelc.frontend.building.build import Builder

Interval = tuple[float, float]
ANY: Interval = (-inf, inf)
DEEPEST = 100  # nodes between a value and what bounds it
SLACK = 1e-6  # of a sum of floats: what rounding may add
LARGEST_EXPONENT = 80.0
_FIRST = (
    *("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Slice", "Gather", "GatherElements"),
    *("GatherND", "Split", "Expand", "Tile", "ReduceMax", "ReduceMin", "ReduceMean", "MaxPool", "Compress"),
)
_UNIT = ("Sigmoid", "HardSigmoid", "Softmax", "Hardmax")
_SIGNED_UNIT = ("Tanh", "Softsign", "Erf", "Sin", "Cos", "Sign")
_TRUTHS = ("Not", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf")


def interval_of(b: Builder, name: str, intervals: dict[str, Interval] | None = None, depth: int = 0) -> Interval:
    """The least and the greatest that an element of the value can be."""
    intervals = {} if intervals is None else intervals
    if name not in intervals:
        value = b.values[name]
        low, high = _interval_without_limits(b, name, intervals, depth)
        if name in b.limited:
            low, high = max(low, 0) if name in b.promised else low, min(high, b.limited[name])
        if value.dtype == "bool":
            low, high = max(low, 0), min(high, 1)
        elif DTYPES[value.dtype].kind in "iu" and value.dtype in ("int8", "uint8", "int16", "uint16"):
            limits = np.iinfo(value.dtype)
            low, high = max(low, limits.min), min(high, limits.max)
        intervals[name] = (low, high)
    return intervals[name]


def _interval_without_limits(b: Builder, name: str, intervals: dict[str, Interval], depth: int) -> Interval:
    data = b.data(name)
    if data is not None:
        usable = data.size > 0 and DTYPES[data.dtype.name].kind in "biuf"
        return (float(data.min()), float(data.max())) if usable else ANY
    if name in b.sizes.bounds:
        return 0, b.sizes.bounds[name]
    node = b.producers.get(name)
    if node is None or depth > DEEPEST or node.bodies:
        return ANY
    operands = [interval_of(b, x, intervals, depth + 1) if x else ANY for x in node.inputs]
    low, high = _result(b, node, operands)
    return ANY if isnan(low) or isnan(high) else (low, high)


def _result(b: Builder, node: Node, given: Sequence[Interval]) -> Interval:
    op = node.op
    if op in _FIRST:
        return given[0]
    if op in _UNIT or op in _TRUTHS:
        return 0, 1
    if op in _SIGNED_UNIT:
        return -1, 1
    if op in ("Where", "Concat", "Pad"):
        return _union(
            [*given[1:]] if op == "Where" else [*given] if op == "Concat" else [given[0], _padding(node, given)]
        )
    if op == "Clip":
        least, most = (given[k] if k < len(node.inputs) and node.inputs[k] else ANY for k in (1, 2))
        return min(max(given[0][0], least[0]), most[1]), min(max(given[0][1], least[1]), most[1])
    if op == "Cast":
        whole = b.values[node.outputs[0]].dtype not in ("float16", "bfloat16", "float32", "float64")
        return _mapped(given[0], trunc) if whole else given[0]
    if op in ("ReduceSum", "CumSum"):
        return _summed(b, node, given[0])
    if op in ("ArgMax", "ArgMin"):
        shape = b.values[node.inputs[0]].shape
        return 0, shape[int(node.attrs.get("axis", 0))] - 1
    return _ARITHMETIC[op](*given) if op in _ARITHMETIC else ANY


def _union(given: Sequence[Interval]) -> Interval:
    return min(low for low, _ in given), max(high for _, high in given)


def _padding(node: Node, given: Sequence[Interval]) -> Interval:
    constant = node.attrs.get("mode", "constant") == "constant"
    return (given[2] if len(node.inputs) > 2 and node.inputs[2] else (0, 0)) if constant else given[0]


def _summed(b: Builder, node: Node, given: Interval) -> Interval:
    """As many terms as elements become one; of a running sum at most all of them, from none on."""
    source, result = (b.values[x] for x in (node.inputs[0], node.outputs[0]))
    if node.op == "CumSum":
        axis = b.data(node.inputs[1])
        terms = source.shape[int(axis.reshape(-1)[0])] if axis is not None else prod(source.shape)
        return min(given[0] * terms, given[0], 0), max(given[1] * terms, given[1], 0)
    terms = prod(source.shape) // max(prod(result.shape), 1)
    slack = 0 if DTYPES[source.dtype].kind in "iu" else SLACK
    low, high = (x * terms if x or terms else 0 for x in given)
    return low - abs(low) * slack if low else 0, high + abs(high) * slack if high else 0


def _mapped(given: Interval, function: Callable[[float], float]) -> Interval:
    low, high = (x if abs(x) == inf else float(function(x)) for x in given)
    return low, high


def _product(a: Interval, c: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in c]
    return min(ends), max(ends)


def _quotient(a: Interval, c: Interval) -> Interval:
    if c[0] <= 0 <= c[1]:
        return ANY
    return _product(a, (1 / c[1], 1 / c[0]))


def _absolute(a: Interval) -> Interval:
    low = 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


def _remainder(a: Interval, c: Interval) -> Interval:
    most = max(abs(c[0]), abs(c[1]))
    return (0 if a[0] >= 0 or c[0] > 0 else -most), most


_ARITHMETIC: Mapping[str, Callable[..., Interval]] = {
    "Add": lambda a, c: (a[0] + c[0], a[1] + c[1]),
    "Sub": lambda a, c: (a[0] - c[1], a[1] - c[0]),
    "Mul": _product,
    "Div": _quotient,
    "Mod": _remainder,
    "Neg": lambda a: (-a[1], -a[0]),
    "Abs": _absolute,
    "Relu": lambda a: (max(a[0], 0), max(a[1], 0)),
    "Softplus": lambda a: (0, max(a[1], 0) + 1),
    "Exp": lambda a: _mapped((max(a[0], -LARGEST_EXPONENT), a[1]), _exponential),
    "Sqrt": lambda a: _mapped((max(a[0], 0), max(a[1], 0)), sqrt),
    "Ceil": lambda a: _mapped(a, ceil),
    "Floor": lambda a: _mapped(a, floor),
    "Round": lambda a: _mapped(a, round),
    "Min": lambda *given: (min(x[0] for x in given), min(x[1] for x in given)),
    "Max": lambda *given: (max(x[0] for x in given), max(x[1] for x in given)),
    "Sum": lambda *given: (sum(x[0] for x in given), sum(x[1] for x in given)),
}


def _exponential(x: float) -> float:
    return exp(x) if x < LARGEST_EXPONENT else inf


__all__ = ["ANY", "Interval", "interval_of"]
