"""Sizes that are computed from data: where a model makes a tensor as large as some whole number says (Range, Expand,
Slice, ...), that number becomes a count with a bound (sizes.py), which a run checks. The bound is what the operators
that compute it say (intervals.py), or what the user says (--bound)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf, prod
from shlex import quote

import numpy as np

from modelc.errors import ModelError
from modelc.frontend.build import Builder, OnnxNode
from modelc.frontend.intervals import interval_of
from modelc.ops.found import ROOM

MOST_NUMBERS = 8  # of a value that says sizes
LARGEST = 1 << 24  # a bound that is greater bounds nothing


def count_sizes(b: Builder, n: OnnxNode, value: str, name: str) -> None:
    """Lets the numbers of a value, which the model calls `name` and some node takes for sizes, be counts where they
    have a bound; else remembers that they have none. Values that are no such numbers are left alone."""
    known = b.values.get(value)
    if known is None or known.data is not None or value in b.sizes.elements or b.sizes.of(value):
        return
    size = prod(known.shape)
    if known.dtype not in ("int32", "int64") or not 0 < size <= MOST_NUMBERS:
        return
    most = min(interval_of(b, value)[1], b.bounds.get(name, inf))
    if not 0 <= most <= LARGEST:
        b.unbounded[value] = name
        return
    b.limited[value] = int(most)
    one = replace(n, op="Bound", inputs=(value,), outputs=(f"{value}_size",))
    checked = b.emit(one, "Bound", (value,), {"most": int(most)}, outputs=(b.fresh(f"{value}_size"),))
    counts = [checked]
    if known.shape:
        flat = b.reshape(one, checked, (size,))
        places = [b.constant(np.asarray(k, np.int64), f"{value}_at") for k in range(size)]
        counts = [b.emit(one, "Gather", (flat, at), {"axis": 0}, (b.fresh(f"{value}_size"),)) for at in places]
    b.sizes.bounds |= dict.fromkeys(counts, max(int(most), ROOM))
    b.sizes.elements[value] = np.asarray([b.sizes.mark(c) for c in counts], np.int64).reshape(known.shape)


def bound_advice(b: Builder, value: str) -> str:
    """How a value whose size is not bounded becomes so, as the end of a sentence; empty where it is not for lack of
    that."""
    found, waiting, seen = list[str](), [value], {value}
    while waiting:
        name = waiting.pop()
        node = b.producers.get(name)
        before = [x for x in node.inputs if x in b.unbounded] if node is not None else []
        if name in b.unbounded and not before:
            found.append(b.unbounded[name])
        new = [x for x in (node.inputs if node is not None else ()) if x and x not in seen]
        if name == value or name in b.unbounded:
            seen.update(new)
            waiting += new
    flags = " ".join(f"--bound {quote(f'{name}=N')}" for name in dict.fromkeys(found))
    return f"; nothing bounds it: say the most that it can be with {flags}" if flags else ""


def check_bounds(b: Builder, names: Collection[str], path: object) -> None:
    """Raises ModelError for what --bound names though it is no size. `names` are the model's values."""
    for name in b.bounds:
        if name not in names:
            raise ModelError(f"--bound names {name!r}, which is no value of {path}")
        if name not in b.limited:
            raise ModelError(
                f"--bound names {name!r}, which is known when compiling, or is not what a size is made of: expected "
                f"whole numbers that depend on data, {MOST_NUMBERS} at most"
            )
