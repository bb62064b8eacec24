"""Ensembles of decision trees, as an opaque Block over tables (frontend/classical/trees.py makes them).

Each row of `nodes` is a node: feature, code, and for a branch the nodes to go on with where its question is answered by
yes and by no, for a leaf (code 0) the first of its weights and the one after the last. Children come after their
parents. The attribute `code` is that of all branches, or 0 where they have several.
"""

from __future__ import annotations

from modelc.ir.block import OpaqueBlock
from modelc.ir.graph import Node, Value
from modelc.ops.opaque import MISSING
from modelc.ops.operator import FLOATS, Definition, Inputs, Operator, Types, fail, required, text

__all__ = ["MISSING", "MODES", "OPERATORS"]

MODES = {"LEQ": 1, "LT": 2, "GTE": 3, "GT": 4, "EQ": 5, "NEQ": 6}  # x <= split, ...; MISSING is added


def _infer(node: Node, inputs: Inputs) -> Types:
    x, weights = required(node, inputs, 0), required(node, inputs, 5)
    if len(x.shape) != 2 or x.dtype not in ("float32", "float64") or weights.dtype not in FLOATS[:2]:
        fail(node, f"expected samples of float32 or float64, found {x.dtype}{list(x.shape)}")
    return ((weights.dtype, (x.shape[0], int(node.attrs["targets"]))),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    numbers = tuple((name, int(node.attrs[name])) for name in ("targets", "code"))
    attrs = (("aggregate", text(node, "aggregate", "add")), *numbers)
    return Definition((), (OpaqueBlock("trees", "trees", tuple(f"x{k}" for k in range(6)), ("y0",), attrs),))


OPERATORS = (Operator("Trees", _infer, _define),)
