"""Gather and scatter where something has a size that depends on data (sizes.py): an index counts from the end that
there is, one beyond it is found by the check of addresses, and what is not there is neither addressed nor scattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.composed import roi_align
from modelc.frontend.building.sizes import less, masked, refuse, whole
from modelc.frontend.operators.form import Form


def _gather(b: Builder, n: OnnxNode) -> None:
    x, indices = n.inputs
    axis = int(n.attrs.get("axis", 0)) % len(b.shape(x))
    given = _addresses(b, n, indices, x, (axis,))
    b.emit(n, n.op, (whole(b, n, x, (axis,)), given), n.attrs, n.outputs)


def _gather_elements(b: Builder, n: OnnxNode) -> None:
    """Along other dimensions than the one that is addressed as much is there of the result as of the indices."""
    x, indices = n.inputs
    axis = int(n.attrs.get("axis", 0)) % len(b.shape(x))
    counts, others = dict(b.sizes.of(indices)), dict(b.sizes.of(x))
    if lost := [k for k, c in others.items() if k != axis and counts.get(k) != c]:
        raise refuse(n, x, lost[0], "the indices have another there")
    given = whole(b, n, _addresses(b, n, indices, x, (axis,)))
    b.emit(n, n.op, (whole(b, n, x), given), n.attrs, n.outputs)
    b.sizes.give(n.outputs[0], counts)


def _regions(b: Builder, n: OnnxNode) -> None:
    """Regions that are not there are taken of the first image."""
    batch = _addresses(b, n, n.inputs[2], n.inputs[0], (0,))
    roi_align(b, replace(n, inputs=(*n.inputs[:2], batch)))


def _gather_nd(b: Builder, n: OnnxNode) -> None:
    x, indices = n.inputs
    batch = int(n.attrs.get("batch_dims", 0))
    axes = range(batch, batch + b.shape(indices)[-1])
    given = _addresses(b, n, indices, x, axes)
    b.emit(n, n.op, (whole(b, n, x, axes), given), n.attrs, n.outputs)


def _addresses(b: Builder, n: OnnxNode, indices: str, x: str, axes: Sequence[int]) -> str:
    """Indices into `axes` of x, the last dimension of them over several axes: an index that is not there leads to none,
    so that the check of addresses finds it, and one of an index that is not there itself to the first."""
    counts, result = dict(b.sizes.of(indices)), indices
    if any(k in b.sizes.of(x) for k in axes):
        zero = b.constant(np.int64(0), f"{indices}_0")
        count, none = _limits(b, n, x, axes)
        as_int64 = b.value(indices).dtype == "int64"
        result = result if as_int64 else b.emit(n, "Cast", (result,), {"to": "int64"})
        result = b.emit(n, "Where", (b.emit(n, "Less", (result, zero)), b.emit(n, "Add", (result, count)), result))
        low, high = b.emit(n, "Less", (result, zero)), b.emit(n, "Less", (result, count))
        result = b.emit(n, "Where", (b.emit(n, "And", (b.emit(n, "Not", (low,)), high)), result, none))
    if counts:
        result = masked(b, n, result, range(len(b.shape(indices))), 0)
        b.sizes.give(result, counts)
    return result


def _limits(b: Builder, n: OnnxNode, x: str, axes: Sequence[int]) -> tuple[str, str]:
    """How much there is of x along each of `axes`, and an index that is not there along any: numbers, or vectors."""
    extents = [b.shape(x)[k] for k in axes]
    none = b.constant(np.asarray(extents if len(axes) > 1 else extents[0], np.int64), f"{x}_none")
    counts = b.sizes.of(x)
    if len(axes) == 1:
        return counts[axes[0]], none
    parts = [
        b.reshape(n, counts[k], (1,)) if k in counts else b.constant(np.asarray([extent], np.int64), f"{x}_extent")
        for k, extent in zip(axes, extents, strict=True)
    ]
    return b.emit(n, "Concat", parts, {"axis": 0}), none


def _scatter(b: Builder, n: OnnxNode) -> None:
    """Updates that are not there are neutral where they are added or multiplied; else the last one that is there is
    made again in their place, which changes nothing, and where there is none at all, the data is the result."""
    data, indices, updates = n.inputs[:3]
    axes = _addressed(b, n, data, indices)
    own = dict(b.sizes.of(data))
    beside = {k: c for k, c in own.items() if k not in axes}
    if n.op == "ScatterND" and beside:
        raise refuse(n, data, min(beside), "indices do not address it")
    if other := [k for k, c in beside.items() if {b.sizes.of(x).get(k) for x in (indices, updates)} != {c}]:
        raise refuse(n, data, other[0], "what is scattered has another there")
    count = _count_of_updates(b, n, indices, updates, beside)
    into = whole(b, n, data)
    given = _addresses(b, n, indices, data, axes)
    reduction = str(n.attrs.get("reduction", "none"))
    op = "ScatterElements" if n.op == "Scatter" else n.op
    if count is None or reduction in ("add", "mul"):
        made = updates if count is None else masked(b, n, updates, (0,), 0 if reduction == "add" else 1)
        b.emit(n, op, (into, whole(b, n, given), whole(b, n, made)), n.attrs, n.outputs)
    else:
        at = b.constant(np.arange(b.shape(indices)[0], dtype=np.int64), f"{indices}_at")
        again = b.emit(n, "Min", (at, less(b, n, count, 1)))
        parts = [b.emit(n, "Gather", (whole(b, n, x), again), {"axis": 0}) for x in (given, updates)]
        scattered = b.emit(n, op, (into, *parts), n.attrs)
        has_updates = b.emit(n, "Less", (b.constant(np.int64(0), f"{indices}_none"), count))
        b.emit(n, "Where", (has_updates, scattered, into), outputs=n.outputs)
    b.sizes.give(n.outputs[0], own)


def _addressed(b: Builder, n: OnnxNode, data: str, indices: str) -> Sequence[int]:
    """The dimensions of what is scattered into that indices address."""
    if n.op == "ScatterND":
        return range(b.shape(indices)[-1])
    return (int(n.attrs.get("axis", 0)) % len(b.shape(data)),)


def _count_of_updates(b: Builder, n: OnnxNode, indices: str, updates: str, beside: Mapping[int, str]) -> str | None:
    """How many rows are scattered, where that depends on data; dimensions `beside` the addressed one aside."""
    counts = [{k: c for k, c in b.sizes.of(x).items() if k not in beside} for x in (indices, updates)]
    named = {c for by_axis in counts for c in by_axis.values()}
    if not named:
        return None
    row = n.op != "ScatterND" or len(b.shape(indices)) > 1
    if beside or len(named) != 1 or any(by_axis.keys() != {0} for by_axis in counts) or not row:
        value = indices if counts[0] else updates
        raise refuse(n, value, min(b.sizes.of(value), default=0), "it is not the first dimension of what is scattered")
    return next(iter(named))


def _scatter_elements(b: Builder, n: OnnxNode) -> None:
    b.emit(n, "ScatterElements", n.inputs, n.attrs, n.outputs)


FORMS = (
    Form("Gather", counted=_gather),
    Form("GatherElements", counted=_gather_elements),
    Form("GatherND", counted=_gather_nd),
    Form("RoiAlign", roi_align, _regions),
    Form("ScatterND", counted=_scatter),
    Form("ScatterElements", counted=_scatter),
    Form("Scatter", _scatter_elements, _scatter),
)
