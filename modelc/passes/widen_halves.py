"""A model of half floats computes in float32 between its inputs and its outputs.

    input X: float16[1, 64, 56, 56]                 input X: float16[1, 64, 56, 56]
    const W: float16[64, 64, 3, 3]                  const W_wide: float32[64, 64, 3, 3]
    a = Conv(X, W)                           ->     X_wide = Cast(X) to="float32"
    Y = Relu(a)                                     a_wide = Conv(X_wide, W_wide)
    output Y                                        Y_wide = Relu(a_wide)
                                                    Y = Cast(Y_wide) to="float16"

Processors that convert half floats, and do not multiply them, would convert each element as often as it is multiplied.
ONNX Runtime rounds nothing on the way either. What the model itself casts to half floats is rounded as it says. A graph
that adds up nothing stays as it is: it waits for memory, and half floats are half of it. So does a product of one row
(of few, where the weights stay in no cache): its constant streams by, and is converted where it is multiplied.
So does what takes elements out of a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.graph import Graph, Node, Value
from modelc.ops import operator_of
from modelc.passes.machine import ANY, Machine

HALF, WIDE = "float16", "float32"
PRODUCTS = ("MatMul", "Gemm")
ADDING = {"Conv", "ConvTranspose", "Einsum", *PRODUCTS}


@dataclass(frozen=True)
class WidenHalves:
    """`rows`: of a product, at most, whose constant stays in half floats where weights come from memory; from caches
    only one row's does."""

    rows: int = 16
    machine: Machine = ANY

    def __call__(self, graph: Graph) -> Graph:
        if not any(node.op in ADDING and graph.value(node.outputs[0]).dtype == HALF for node in graph.nodes):
            return graph
        constants = sum(prod(value.shape) for value in graph.values.values() if value.data is not None)
        few = self.rows if 4 * constants > self.machine.kept_bytes else min(self.rows, 1)
        return _Widening(graph, few).graph()


class _Widening:
    """One application: `wide` has the float32 value of each half float that one was needed of."""

    def __init__(self, graph: Graph, few: int):
        self.old, self.few = graph, few
        self.values: dict[str, Value] = dict(graph.values)
        self.wide: dict[str, str] = {}
        self.narrow: set[str] = {name for name in graph.inputs if name in graph.values}
        self.nodes: list[Node] = []
        self.stored = 0

    def graph(self) -> Graph:
        for node in self.old.nodes:
            widened = None if self._streams(node) else self._widened(node)
            if widened is None:
                for name in filter(None, node.inputs):
                    self._as_half(name)
                self.nodes.append(node)
                self.narrow |= {*filter(None, node.outputs)}
            else:
                self.nodes.append(widened)
        for name in self.old.outputs:
            self._as_half(name)
        notes = self.old.notes
        if self.stored:
            megabytes = 2 * self.stored / 1e6
            note = f"{megabytes:.3g} MB of float16 constants are stored as float32, for they are multiplied as that"
            notes = (*notes, note)
        return replace(self.old, values=self.values, notes=notes).with_nodes(self.nodes)

    def _streams(self, node: Node) -> bool:
        """Whether constants in half floats are all that it reads, or a matrix is for so few rows that it is not worth
        converting before."""
        halves = [self.old.value(name) for name in node.inputs if name and self.old.value(name).dtype == HALF]
        if halves and all(value.data is not None for value in halves):
            return True
        if node.op not in PRODUCTS or node.inputs[1] not in self.old.values:
            return False
        matrix, result = self.old.value(node.inputs[1]), self.old.value(node.outputs[0])
        if matrix.data is None or matrix.dtype != HALF or not result.shape:
            return False
        return prod(result.shape[:-1]) <= self.few

    def _widened(self, node: Node) -> Node | None:
        """The node in float32; None where it has no half floats, or results that stay so."""
        outputs = [self.old.value(name) if name else None for name in node.outputs]
        inputs = [self.old.value(name) if name else None for name in node.inputs]
        if node.bodies or not any(v is not None and v.dtype == HALF for v in inputs):
            return None
        wide = tuple(replace(v, dtype=WIDE, data=_as_float(v)) if v and v.dtype == HALF else v for v in inputs)
        try:
            types = operator_of(node).infer(node, wide)
        except ModelError:
            return None
        wanted = [(WIDE if v.dtype == HALF else v.dtype, v.shape) for v in outputs if v is not None]
        inferred = [kind for kind, v in zip(types, outputs, strict=False) if v is not None]
        if inferred != wanted:
            return None
        read = [self._as_float(name) if name else name for name in node.inputs]
        written = []
        for name, value in zip(node.outputs, outputs, strict=True):
            if value is None or value.dtype != HALF:
                written.append(name)
                continue
            self.wide[name] = self._fresh(name)
            self.values[self.wide[name]] = replace(value, name=self.wide[name], dtype=WIDE)
            written.append(self.wide[name])
        exact = node.op == "Cast" and self.old.value(node.outputs[0]).dtype == WIDE
        return replace(
            node,
            op="Identity" if exact else node.op,
            attrs={} if exact else node.attrs,
            inputs=tuple(read),
            outputs=tuple(written),
        )

    def _as_float(self, name: str) -> str:
        value = self.old.value(name)
        if value.dtype != HALF:
            return name
        if name not in self.wide:
            wide = self.wide[name] = self._fresh(name)
            self.values[wide] = replace(value, name=wide, dtype=WIDE, data=_as_float(value))
            if value.data is None:
                self.nodes.append(Node("Cast", wide, (name,), (wide,), {"to": WIDE}))
            else:
                self.stored += value.data.size
        return self.wide[name]

    def _as_half(self, name: str) -> None:
        """The half float itself is there."""
        if name in self.wide and name not in self.narrow and self.old.value(name).data is None:
            self.nodes.append(Node("Cast", self._fresh(f"{name}_half"), (self.wide[name],), (name,), {"to": HALF}))
            self.narrow.add(name)

    def _fresh(self, name: str) -> str:
        return self.old.fresh(f"{name}_wide", self.values)


def _as_float(value: Value) -> NDArray[Any] | None:
    return None if value.data is None else np.asarray(value.data, np.float32)
