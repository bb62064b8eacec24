"""Subnormal weights become zero. They are far below rounding, and arithmetic on them is many times slower."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph

Array = NDArray[Any]
SMALLEST_NORMAL = {"float32": np.finfo(np.float32).tiny, "float64": np.finfo(np.float64).tiny, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class FlushSubnormals:
    """Half floats are left alone: their subnormals are ordinary small numbers."""

    def __call__(self, graph: Graph) -> Graph:
        values, count, constants = dict(graph.values), 0, 0
        for name, value in graph.values.items():
            if value.data is None or not (subnormal := subnormals(value.data)).any():
                continue
            values[name] = replace(value, data=np.where(subnormal, value.data.dtype.type(0), value.data))
            count, constants = count + int(subnormal.sum()), constants + 1
        if not count:
            return graph
        note = f"flushed {count} subnormal weights in {constants} constants to zero"
        return replace(graph, values=values, notes=(*graph.notes, note))


def subnormals(data: Array) -> NDArray[np.bool_]:
    """Which numbers become zero."""
    if data.dtype.name not in SMALLEST_NORMAL:
        return np.zeros(data.shape, bool)
    return np.asarray((data != 0) & (np.abs(data) < data.dtype.type(SMALLEST_NORMAL[data.dtype.name])))
