"""The meanings, in NumPy, of what has no affine form. An OpaqueBlock names one of these; codegen implements them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import OpaqueBlock

Array = NDArray[Any]
Meaning = Callable[..., tuple[Array, ...]]
Range = tuple[str, int | None, int, int]  # operand, column of its last dimension (None: all of it), least, greatest
REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def topk(attrs: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """The `k` greatest (or least) elements along `axis`, in order, and where they were; of equal ones the first."""
    axis, k = attrs["axis"], attrs["k"]
    if attrs["largest"]:  # a stable sort, descending: reverse twice
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    found = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, found, axis), found.astype(np.int64)


def scatter_nd(attrs: Mapping[str, Any], x: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
    """`x` with slices replaced by (or combined with) `updates`, one after another."""
    result, combine = x.copy(), REDUCE[attrs["reduction"]]
    for position in np.ndindex(indices.shape[:-1]):
        at = tuple(int(i) for i in indices[position])
        result[at] = combine(result[at], updates[position])
    return (result,)


def scatter_elements(attrs: Mapping[str, Any], x: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
    """`x` with single elements replaced by (or combined with) `updates`, one after another."""
    result, axis, combine = x.copy(), attrs["axis"], REDUCE[attrs["reduction"]]
    for position in np.ndindex(indices.shape):
        at = (*position[:axis], int(indices[position]), *position[axis + 1 :])
        result[at] = combine(result[at], updates[position])
    return (result,)


ANSWERS: tuple[Callable[[Any, Any], bool], ...] = (  # to the question of a branch, by the lower bits of its code
    lambda x, split: False,
    operator.le,
    operator.lt,
    operator.ge,
    operator.gt,
    operator.eq,
    operator.ne,
)
MISSING = 8  # in the code of a branch: the answer for a NaN is yes


def trees(
    attrs: Mapping[str, Any], x: Array, nodes: Array, splits: Array, roots: Array, targets: Array, weights: Array
) -> tuple[Array, ...]:
    """Of every sample what the leaves that its trees lead to give to each target, added, or the least or the greatest
    of it; 0 for a target that nothing is given to."""
    combine = REDUCE[attrs["aggregate"]]
    result = np.zeros((len(x), attrs["targets"]), weights.dtype)
    given = np.zeros(result.shape, bool)
    for row, root in np.ndindex(len(x), len(roots)):
        at = int(roots[root])
        while code := int(nodes[1, at]):
            value = x[row, nodes[0, at]]
            yes = ANSWERS[code % MISSING](value, splits[at]) or (code >= MISSING and np.isnan(value))
            at = int(nodes[2 if yes else 3, at])
        for k in range(nodes[2, at], nodes[3, at]):
            place = row, int(targets[k])
            result[place] = combine(result[place], weights[k]) if given[place] else weights[k]
            given[place] = True
    return (result,)


def index_ranges(block: OpaqueBlock, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Range, ...]:
    """Where the operands of `block` that addresses are computed from have to lie."""
    attrs = dict(block.attrs)
    if block.meaning == "scatter_nd":
        data, indices = shapes[block.inputs[0]], shapes[block.inputs[1]]
        return tuple((block.inputs[1], d, -data[d], data[d] - 1) for d in range(indices[-1]))
    if block.meaning == "scatter_elements":
        n = shapes[block.inputs[0]][attrs["axis"]]
        return ((block.inputs[1], None, -n, n - 1),)
    return ()


MEANINGS: dict[str, Meaning] = {
    "topk": topk,
    "scatter_nd": scatter_nd,
    "scatter_elements": scatter_elements,
    "trees": trees,
}
