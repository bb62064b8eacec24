"""Computes what depends on constants alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from modelc.ir.graph import Graph, Node, Value
from modelc.ops.direct import computed

KEPT = {"DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear"}  # constants are better kept quantised


@dataclass(frozen=True)
class FoldConstants:
    """`limit`: elements of a folded output, at most, if it is larger than what it is computed from (so that Expand of
    a number stays an Expand). `dequantize`: whether quantized constants become real ones (1), which is for those that
    no contraction of whole numbers has taken."""

    limit: int = 1 << 16
    dequantize: int = 0

    def __call__(self, graph: Graph) -> Graph:
        values, outputs = dict(graph.values), frozenset(graph.outputs)
        readers = Counter(x for node in graph.nodes for x in dict.fromkeys(node.inputs))
        kept: list[Node] = []
        folded: dict[str, Value] = {}
        count = 0
        for node in graph.nodes:
            inputs = tuple(values[x] if x else None for x in node.inputs)
            if not outputs.isdisjoint(node.outputs) or not self._folds(node, inputs, values):
                kept.append(node)
                continue
            count += 1
            for name, data in zip(node.outputs, computed(node, inputs), strict=False):
                if name:
                    shape = values[name].shape
                    value = Value(name, values[name].dtype, shape, np.asarray(data, order="C").reshape(shape))
                    values[name] = folded[name] = value
            for name in dict.fromkeys(node.inputs):
                readers[name] -= 1
                if not readers[name] and name in folded:  # large ones would add up along a chain
                    del folded[name]
                    values[name] = graph.values[name]
        return graph.with_nodes(kept, folded.values()) if count else graph

    def _folds(self, node: Node, inputs: tuple[Value | None, ...], values: dict[str, Value]) -> bool:
        kept = node.op in KEPT and not (self.dequantize and node.op == "DequantizeLinear")
        if kept or node.bodies:
            return False
        if any(v is not None and v.data is None for v in inputs):
            return False
        read = sum(prod(v.shape) for v in inputs if v is not None)
        return sum(prod(values[out].shape) for out in node.outputs if out) <= max(self.limit, read)
