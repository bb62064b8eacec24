"""Ensembles of decision trees, as an opaque Block over tables (frontend/classical/tree_tables.py makes them).

    x0 samples, x1 nodes, x2 splits    nodes are numbers of two or three fields (attribute `bits`: of the first): the
                                       column that is asked about, the code of the question where branches have several
                                       (else the attribute `code` has it), and how far behind a branch the node is with
                                       which it goes on where the answer is no; behind that one is the node for yes.
                                       That is 0 for leaves, whose split is a NaN, so that no answer is yes.
    x3 roots                           of trees, and in how many steps a leaf is reached: at least, at most
    x4 spans                           of node k the weights from spans[k] on and before spans[k + 1]
    x5 targets, x6 weights             weight k goes to targets[k % len(targets)]; where the attribute `dense` is 1, a
                                       leaf has one for each target, in order

A column is a feature, or the number of features and a feature: then the answer for a NaN is yes. Columns are such only
where the attribute `filled` is 1, and then a question has the same answer for the infinity that its code is said of.
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
