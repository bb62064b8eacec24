"""Subnormal weights become zero. They are far below rounding, and arithmetic on them is many times slower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph

SMALLEST_NORMAL = {"float32": np.finfo(np.float32).tiny, "float64": np.finfo(np.float64).tiny, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class FlushSubnormals:
    """Half floats are left alone: their subnormals are ordinary small numbers."""

    def __call__(self, graph: Graph) -> Graph:
        values, count, constants = dict(graph.values), 0, 0
        for name, value in graph.values.items():
            if value.data is None or value.dtype not in SMALLEST_NORMAL:
                continue
            limit = DTYPES[value.dtype].type(SMALLEST_NORMAL[value.dtype])
            subnormal = (value.data != 0) & (np.abs(value.data) < limit)
            if not subnormal.any():
                continue
            values[name] = replace(value, data=np.where(subnormal, DTYPES[value.dtype].type(0), value.data))
            count, constants = count + int(subnormal.sum()), constants + 1
        if not count:
            return graph
        note = f"flushed {count} subnormal weights in {constants} constants to zero"
        return replace(graph, values=values, notes=(*graph.notes, note))
