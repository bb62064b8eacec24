"""Where the numbers of a value lie, whatever the model's data: what operators say of their results. It is how computed
sizes get a bound (bounded.py)."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ops import OPERATORS
from modelc.ops.interval import ANY, Interval

if TYPE_CHECKING:
    from modelc.frontend.building.build import Builder

DEEPEST = 100  # nodes between a value and what bounds it


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
    inputs = tuple(b.values[x] if x else None for x in node.inputs)
    low, high = OPERATORS[node.op].bounded(node, inputs, operands)
    return ANY if isnan(low) or isnan(high) else (low, high)
