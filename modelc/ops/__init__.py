"""The operator library: the meaning of every operator as Blocks. One small entry each, grouped in files by family."""

from modelc.ops.evaluate import evaluate_graph, evaluate_node, run
from modelc.ops.opaque import MEANINGS
from modelc.ops.operator import Definition, Operator
from modelc.ops.table import OPERATORS, REFUSED, operator_of

__all__ = [
    "MEANINGS", "OPERATORS", "REFUSED", "Definition", "Operator", "evaluate_graph", "evaluate_node",
    "operator_of", "run"
]  # fmt: skip
