"""Sizes that are computed from data: where a model makes a tensor as large as some whole number says (Range, Expand,
Slice, ...), that number becomes a count with a bound (sizes.py), which a run checks. The bound is what the operators
that compute it say (intervals.py), or what the user says (--bound)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil, prod
from shlex import quote

import numpy as np

from modelc.errors import ModelError
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.intervals import interval_of
from modelc.ir.expr import DTYPES
from modelc.ops.found import ROOM

MOST_NUMBERS = 8  # of a value that says sizes
LARGEST = 1 << 24  # a bound that is greater bounds nothing
WHOLE = ("int32", "int64")  # dtypes of sizes


def count_sizes(b: Builder, n: OnnxNode, value: str, name: str) -> None:
    """Lets the numbers of a value, which the model calls `name` and some node takes for sizes, be counts where they
    have a bound; else remembers that they have none. Floats are no counts themselves, but counts may be computed of
    them. Values that are no such numbers are left alone."""
    declared = b.values.get(value)
    if declared is None or declared.data is not None or value in b.sizes.elements or b.sizes.of(value):
        return
    size, real = prod(declared.shape), DTYPES[declared.dtype].kind == "f"
    if not (real or declared.dtype in WHOLE) or not 0 < size <= MOST_NUMBERS:
        return
    least, most = interval_of(b, value)
    if name in b.bounds:
        least, most = max(least, 0), min(most, b.bounds[name])
        b.promised.add(value)
    if most > LARGEST:
        b.unbounded[value] = name
        return
    if least < 0 and most <= 0:
        return  # not a size, but where a range begins
    b.limited[value] = ceil(most) if real else int(most)
    if real:
        return
    node = replace(n, op="Bound", inputs=(value,), outputs=(f"{value}_size",))
    checked = checked_count(b, node, value, int(most))
    counts = [checked]
    if declared.shape:
        flat = b.reshape(node, checked, (size,))
        places = [b.constant(np.asarray(k, np.int64), f"{value}_at") for k in range(size)]
        counts = [b.emit(node, "Gather", (flat, at), {"axis": 0}, (b.fresh(f"{value}_size"),)) for at in places]
    b.sizes.bounds |= dict.fromkeys(counts, max(int(most), ROOM))
    b.sizes.elements[value] = np.asarray([b.sizes.mark(c) for c in counts], np.int64).reshape(declared.shape)


def checked_count(b: Builder, n: OnnxNode, value: str, most: int) -> str:
    """The whole numbers of `value` as int64, of which every run checks that they are neither negative nor more than
    `most`; it has the name that `n` gives its output, if that is free."""
    return b.emit(n, "Bound", (value,), {"most": most}, outputs=(b.fresh(n.outputs[0]),))


def bound_advice(b: Builder, value: str) -> str:
    """How a value whose size is not bounded becomes so, as the end of a sentence; empty where it is not for lack of
    that. Of whole numbers that are computed of others the first are named, of floats none behind whole numbers."""
    names, waiting, seen = list[str](), [value], {value}
    while waiting:
        name = waiting.pop()
        node = b.producers.get(name)
        before = [x for x in (node.inputs if node is not None else ()) if x in b.unbounded]
        if b.value(name).dtype in WHOLE:
            before = [x for x in before if b.value(x).dtype in WHOLE]
        if name in b.unbounded and not before:
            names.append(b.unbounded[name])
        waiting += [x for x in before if x not in seen]
        seen.update(before)
    flags = " ".join(f"--bound {quote(f'{name}=N')}" for name in dict.fromkeys(names))
    return f"; nothing bounds it: say the most that it can be with {flags}" if flags else ""


def check_bounds(b: Builder, names: Collection[str], sizes: Collection[str], path: object) -> None:
    """Raises ModelError for what --bound names though it is no size. `names` are the model's values, and `sizes` those
    that nodes take for sizes, or compute these of."""
    for name in b.bounds:
        if name not in names:
            raise ModelError(f"--bound names {name!r}, which is no value of {path}")
        if name not in b.limited or (name not in sizes and b.value(name).dtype not in WHOLE):
            raise ModelError(
                f"--bound names {name!r}, which is known when compiling, or is not what a size is made of: expected "
                f"numbers that depend on data, {MOST_NUMBERS} at most"
            )
