"""Subnormal weights become zero where rounding permits: arithmetic on them is many times slower on some CPUs.

Rounding permits it beside a number of the same constant that is NEGLIGIBLE times as large: in a float32 sum of the
products of both, the subnormal's is 2^-16 of a rounding. What is small by itself stays, such as 1e-40 that keeps a
divisor from zero; `codegen.flush_denormals` says whether a run takes that as zero. Small numbers that are not subnormal
stay too: only their products may become so, and that mode takes these as zero at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph

Array = NDArray[Any]
NEGLIGIBLE = 2.0**40
SMALLEST_NORMAL = {"float32": np.finfo(np.float32).tiny, "float64": np.finfo(np.float64).tiny, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class FlushSubnormals:
    """Half floats are left alone: their subnormals are ordinary small numbers."""

    def __call__(self, graph: Graph) -> Graph:
        values, count, constants = dict(graph.values), 0, 0
        for name, value in graph.values.items():
            if value.data is None or not (subnormal := subnormals(value.data)).any():
                continue
            if np.fmax.reduce(np.abs(value.data), axis=None) < NEGLIGIBLE * SMALLEST_NORMAL[value.dtype]:
                continue
            values[name] = replace(value, data=np.where(subnormal, value.data.dtype.type(0), value.data))
            count, constants = count + int(subnormal.sum()), constants + 1
        if not count:
            return graph
        note = f"flushed {count} subnormal weights in {constants} constants to zero"
        return replace(graph, values=values, notes=(*graph.notes, note))


def subnormals(data: Array) -> NDArray[np.bool_]:
    """Which numbers are subnormal, and not half floats."""
    if data.dtype.name not in SMALLEST_NORMAL:
        return np.zeros(data.shape, bool)
    return np.asarray((data != 0) & (np.abs(data) < data.dtype.type(SMALLEST_NORMAL[data.dtype.name])))
