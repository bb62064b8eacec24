"""Range whose start or limit depends on data: as many numbers as there can be, and a count of those that there are."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import NotKnown
from modelc.frontend.building.bounded import LARGEST, WHOLE, checked_count
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.building.intervals import interval_of
from modelc.frontend.building.sizes import less
from modelc.frontend.operators.form import Form
from modelc.ops.found import ROOM

START, LIMIT, DELTA = range(3)
EXACT = (*WHOLE, "float32", "float64")
NAMES = ("start", "limit", "delta")


def ranged(b: Builder, n: OnnxNode) -> None:
    """The node stays as it is where its inputs are known. Else its delta has to be, and the rest to be bounded."""
    if all(b.data(x) is not None and x not in b.sizes.elements for x in n.inputs):
        b.emit(n, n.op, n.inputs, n.attrs, n.outputs)
        return
    delta, start, limit = (_number(b, n, k) for k in (DELTA, START, LIMIT))
    if delta is None:
        raise _not_known(b, n, DELTA)
    if not delta or not all(np.isfinite(x) for x in (delta, start, limit) if x is not None):
        raise n.fail("expected finite numbers, and a delta other than zero, where a range depends on data")
    size = _size(b, n.inputs[LIMIT])
    if size is not None and start is not None and delta == 1 and start >= 0 and start % 1 == 0:
        count = less(b, n, size, int(start))
    else:
        count = _steps(b, n, float(delta))
    numbers = np.arange(b.sizes.bounds[count]).astype(delta.dtype) * delta + (0 if start is None else start)
    first = b.constant(numbers.astype(delta.dtype), f"{n.outputs[0]}_numbers")
    if start is None:
        b.emit(n, "Add", (first, b.reshape(n, n.inputs[START], ())), outputs=n.outputs)
    else:
        b.emit(n, "Identity", (first,), outputs=n.outputs)
    b.sizes.give(n.outputs[0], {0: count})


def _number(b: Builder, n: OnnxNode, k: int) -> NDArray[Any] | None:
    """Input `k`, which is one number; None where it depends on data."""
    if b.value(n.inputs[k]).shape not in ((), (1,)):
        raise n.fail(f"expected one number at position {k}, found {list(b.shape(n.inputs[k]))}")
    data = None if n.inputs[k] in b.sizes.elements else b.data(n.inputs[k])
    return None if data is None else data.reshape(())


def _not_known(b: Builder, n: OnnxNode, k: int) -> NotKnown:
    name = n.inputs[k]
    refusal = n.fail(f"expected a constant as {NAMES[k]}, found {name!r}, which is computed when the model runs")
    return NotKnown(f"{refusal}{b.advice(name)}", name)


def _size(b: Builder, limit: str) -> str | None:
    """The size that the limit is, as it is or as another dtype that has all sizes."""
    while limit not in b.sizes.elements:
        node = b.producers.get(limit)
        if node is None or node.op != "Cast" or b.value(limit).dtype not in EXACT:
            return None
        limit = node.inputs[0]
    return b.sizes.marked(int(b.sizes.elements[limit].item()))


def _steps(b: Builder, n: OnnxNode, delta: float) -> str:
    """The count of steps from the start to the limit. Every run checks that it is no more than there is room for."""
    f = Formula(b, n)
    (first, last), (low, high) = (interval_of(b, x) for x in n.inputs[:DELTA])
    start, limit = (first, high) if delta > 0 else (last, low)
    for k, end in ((START, start), (LIMIT, limit)):
        if abs(end) == inf:
            raise _not_known(b, n, k)
    most = max(ceil((limit - start) / delta), 0)
    if most > LARGEST:
        raise n.fail(f"expected at most {LARGEST} steps from start to limit, found up to {most}")
    span = f.reshaped(f("Sub", n.inputs[LIMIT], n.inputs[START]))
    if delta != 1 or f.dtype(span) not in WHOLE:
        span = f("Ceil", f("Div", f.cast(span, "float64"), f.constant(delta, "float64")))
    name = b.fresh(f"{n.outputs[0]}_steps")
    f("Max", f.cast(span, "int64"), f.constant(0, "int64"), outputs=(name,))
    count = checked_count(b, replace(n, op="Bound", outputs=(f"{name}_size",)), name, most)
    b.sizes.bounds[count] = max(most, ROOM)
    return count


FORMS = (Form("Range", ranged, ranged),)
