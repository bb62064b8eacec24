"""Sizes that depend on data (sizes.py) as numbers: what operators on whole numbers make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.fold import folded
from modelc.frontend.building.sizes import count_of, less, rest_of
from modelc.frontend.operators.form import Form
from modelc.frontend.operators.table import FORMS
from modelc.ir.expr import DTYPES

Array = NDArray[Any]
_MOVES = ("Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Identity", "Reshape", "Flatten", "Transpose", "Where")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Min", "Max")
MOST_NUMBERS = 64  # more than a shape has dimensions
Combine = Callable[[Builder, OnnxNode, int, int], int | bool | None]


def touched(b: Builder, n: OnnxNode) -> bool:
    """Whether something that the node takes depends in its size on data, or is such a size."""
    return any(b.sizes.of(x) or x in b.sizes.elements for x in n.inputs if x)


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
        results = folded(b, n, FORMS.get(n.op, Form(n.op)).known, inputs)
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
