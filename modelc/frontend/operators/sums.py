"""Reductions, and what goes along an axis: where something is counted, what is not there is as nothing."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import count_of, masked, refuse
from modelc.frontend.operators.form import Form, Normaliser, axes_of, forms, moved_to_inputs, plain, whole_numbers
from modelc.ir.expr import DTYPES
from modelc.ops.found import ROOM

_reduction = moved_to_inputs((1, "axes", "int64"))
_top_k = moved_to_inputs((1, "k", "int64"))


def softmax(b: Builder, n: OnnxNode) -> None:
    """Before operator set 13: over all the dimensions from `axis` on, flattened."""
    shape = b.shape(n.inputs[0])
    if n.version >= 13:
        b.emit(n, n.op, n.inputs, {"axis": n.attrs.get("axis", -1)}, n.outputs)
        return
    (axis,) = axes_of(n, (n.attrs.get("axis", 1),), len(shape)) if len(shape) != 1 else (0,)
    if prod(shape[axis + 1 :]) == 1:
        b.emit(n, n.op, n.inputs, {"axis": axis}, n.outputs)
        return
    flat = b.reshape(n, n.inputs[0], (prod(shape[:axis]), prod(shape[axis:])))
    b.reshape(n, b.emit(n, n.op, (flat,), {"axis": 1}), shape, n.outputs[0])


# --- where sizes depend on data -------------------------------------------------------------------------------------


def _least(dtype: str) -> Any:
    kind = DTYPES[dtype]
    return False if dtype == "bool" else np.iinfo(kind).min if kind.kind in "iu" else -np.inf


def _most(dtype: str) -> Any:
    kind = DTYPES[dtype]
    return True if dtype == "bool" else np.iinfo(kind).max if kind.kind in "iu" else np.inf


def _reduced_axes(b: Builder, n: OnnxNode) -> set[int]:
    rank = len(b.shape(n.inputs[0]))
    axes = whole_numbers(b, n, 1, "axes")
    if not axes:
        return set() if n.attrs.get("noop_with_empty_axes", 0) else set(range(rank))
    return {a % rank for a in axes}


def _counted_reduction(b: Builder, n: OnnxNode) -> None:
    x, axes = n.inputs[0], _reduced_axes(b, n)
    dtype, counts = b.value(x).dtype, b.sizes.of(x)
    kind = n.op.removeprefix("Reduce")
    neutral = {"Max": _least(dtype), "Min": _most(dtype), "Prod": 1, "LogSumExp": _least(dtype)}.get(kind, 0)
    inputs = (masked(b, n, x, axes, neutral), *n.inputs[1:])
    there_ = [counts[k] for k in sorted(axes) if k in counts]
    if kind != "Mean" or not there_:
        _reduction(b, replace(n, inputs=inputs))
        return
    total = b.fresh(f"{n.outputs[0]}_total")
    _reduction(b, replace(n, op="ReduceSum", inputs=inputs, outputs=(total,)))
    count = there_[0]
    for other in there_[1:]:
        count = count_of(b, n, "Mul", count, other)
    fixed = prod(b.shape(x)[k] for k in axes if k not in counts)
    count = count_of(b, n, "Max", count_of(b, n, "Mul", count, fixed), 1)
    b.emit(n, "Div", (total, b.emit(n, "Cast", (count,), {"to": dtype})), outputs=n.outputs)


def _counted_softmax(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    shape, counts = b.shape(x), b.sizes.of(x)
    axis = int(n.attrs.get("axis", -1 if n.version >= 13 else 1)) % len(shape)
    if n.version < 13 and counts.keys() & {*range(axis, len(shape))} and prod(shape[axis + 1 :]) != 1:
        raise refuse(n, x, min(counts), "it is flattened with others")
    _masked_along(b, n, axis, _least(b.value(x).dtype), softmax)


def _counted_running_sum(b: Builder, n: OnnxNode) -> None:
    axis = int(np.asarray(b.steering(n, 1, "axis")).reshape(-1)[0])
    _masked_along(b, n, axis % len(b.shape(n.inputs[0])), 0, plain)


def _masked_along(b: Builder, n: OnnxNode, axis: int, neutral: Any, known: Normaliser) -> None:
    """An operator that gives as many elements as it takes."""
    counts = dict(b.sizes.of(n.inputs[0]))
    known(b, replace(n, inputs=(masked(b, n, n.inputs[0], (axis,), neutral), *n.inputs[1:])))
    b.sizes.give(n.outputs[0], counts)


def _counted_arg(b: Builder, n: OnnxNode) -> None:
    """The first of the best: what is not there comes after all that is."""
    x = n.inputs[0]
    axis, dtype = int(n.attrs.get("axis", 0)) % len(b.shape(x)), b.value(x).dtype
    if axis in b.sizes.of(x) and n.attrs.get("select_last_index", 0):
        raise refuse(n, x, axis, "the last of the best is asked for")
    given = masked(b, n, x, (axis,), _least(dtype) if n.op == "ArgMax" else _most(dtype))
    plain(b, replace(n, inputs=(given,)))


def _counted_top_k(b: Builder, n: OnnxNode) -> None:
    """As many as there are, and as are asked for, which may depend on data too."""
    x = n.inputs[0]
    shape, counts, dtype = b.shape(x), dict(b.sizes.of(x)), b.value(x).dtype
    axis = int(n.attrs.get("axis", -1)) % len(shape)
    elements = b.sizes.elements.get(n.input(1))
    asked = b.sizes.marked(int(elements.reshape(-1)[0])) if elements is not None and elements.size == 1 else None
    most = shape[axis]
    if asked is None:
        wanted = whole_numbers(b, n, 1, "k")
        if wanted is None or axis not in counts:
            _top_k(b, n)
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


def _counted_product(b: Builder, n: OnnxNode) -> None:
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


_SUMS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare"
FORMS = (
    *forms(f"{_SUMS} ReduceMax ReduceMin", _reduction, _counted_reduction),
    *forms("Softmax LogSoftmax", softmax, _counted_softmax),
    Form("Hardmax", softmax),
    Form("CumSum", counted=_counted_running_sum),
    *forms("ArgMax ArgMin", counted=_counted_arg),
    Form("TopK", _top_k, _counted_top_k),
    Form("MatMul", counted=_counted_product),
)
