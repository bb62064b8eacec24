"""Ensembles of decision trees, as an opaque Block over tables (frontend/classical/tree_tables.py makes them).

    x0 samples
    x1 nodes, x2 splits     a node has two or three fields, from its lowest bits on: the column that its split is
                            compared with (attribute `bits`), the code of its question where branches have several (the
                            attribute `code`, 0 there, has it elsewhere), and how far behind a branch its child for no
                            is, which the child for yes follows; 0 in leaves, whose splits are NaNs
    x3 roots                of trees: the node, and in how many steps a leaf is reached at least and at most
    x4 spans                node k has the weights from spans[k] on and before spans[k + 1]
    x5 targets, x6 weights  weight k goes to targets[k % len(targets)]; with the attribute `dense` a leaf has one weight
                            for each target, in order

A branch of which several are parents is stored once; others have a node there that leads on to it: a branch of code 0.

A column is a feature, or, with the attribute `filled`, the number of features and a feature: then NaNs are answered by
yes, as the infinity on the side of yes is.
"""

from __future__ import annotations

from modelc.ir.block import OpaqueBlock
from modelc.ir.graph import Node, Value
from modelc.ops.operator import FLOATS, Definition, Inputs, Operator, Types, fail, required, text

NUMBERS = ("targets", "code", "bits", "filled", "dense")


def _infer(node: Node, inputs: Inputs) -> Types:
    x, weights = required(node, inputs, 0), required(node, inputs, 6)
    if len(x.shape) != 2 or x.dtype not in ("float32", "float64") or weights.dtype not in FLOATS[:2]:
        fail(node, f"expected samples of float32 or float64, found {x.dtype}{list(x.shape)}")
    return ((weights.dtype, (x.shape[0], int(node.attrs["targets"]))),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    numbers = tuple((name, int(node.attrs[name])) for name in NUMBERS)
    attrs = (("aggregate", text(node, "aggregate", "add")), *numbers)
    return Definition((), (OpaqueBlock("trees", "trees", tuple(f"x{k}" for k in range(7)), ("y0",), attrs),))


OPERATORS = (Operator("Trees", _infer, _define),)
