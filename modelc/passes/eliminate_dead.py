"""Drops nodes and constants that no output needs, and names of outputs that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from modelc.ir.graph import Graph, Node
from modelc.passes.pattern import live

# Operators whose trailing outputs are optional: an unread one is not computed.
OPTIONAL_OUTPUTS = {
    *("MaxPool", "LayerNormalization", "BatchNormalization", "LSTM", "GRU", "RNN", "LSTMStep", "GRUStep", "RNNStep")
}


@dataclass(frozen=True)
class EliminateDead:
    def __call__(self, graph: Graph) -> Graph:
        graph = live(graph)
        read = {x for node in graph.nodes for x in node.inputs} | set(graph.outputs)
        return graph.with_nodes(_trimmed(node, read) for node in graph.nodes)


def _trimmed(node: Node, read: set[str]) -> Node:
    if node.op not in OPTIONAL_OUTPUTS or all(o in read for o in node.outputs):
        return node
    outputs = [o if o in read else "" for o in node.outputs]
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return replace(node, outputs=tuple(outputs))
