"""Rows that are rounded to bytes by scales of their own, as one node:

    scale = Max(ReduceMax(Abs(x), -1), least) * step
    bytes = Cast(Round(x * (1 / scale)) + zero)                    ->   bytes, scale = QuantizeRows(x)

A row is read once then where it is quantized, and what computes it may quantize it too (partition/fuse.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelc.ir.graph import Graph, Node
from modelc.passes.machine import BYTES, WIDE
from modelc.passes.pattern import Editor, live


@dataclass(frozen=True)
class QuantizeRows:
    """Without options."""

    def __call__(self, graph: Graph) -> Graph:
        editor = Editor(graph)
        made, dropped = dict[str, Node](), set[str]()  # the first by the name of the node that computes the scales
        for node in graph.nodes:
            rows = _rows(editor, node)
            if rows is None:
                continue
            x, scales, attrs = rows
            if scales.name in made:
                continue
            outputs, source = (node.outputs[0], scales.outputs[0]), tuple(dict.fromkeys((*scales.source, *node.source)))
            made[scales.name] = Node("QuantizeRows", scales.name, (x,), outputs, attrs, source)
            dropped.add(node.name)
        if not made:
            return graph
        nodes = [made.get(node.name, node) for node in graph.nodes if node.name not in dropped]
        return live(graph.with_nodes(nodes))


def _rows(e: Editor, node: Node) -> tuple[str, Node, dict[str, Any]] | None:
    """The value whose rows a Cast writes as bytes, the node that computes their scales, and how they are rounded."""
    to = node.attrs.get("to")
    if node.op != "Cast" or to not in (*BYTES, WIDE):
        return None
    zero, rounding = 0.0, _made(e, node.inputs[0], "Add")
    if rounding is None:
        rounding = e.producer(node.inputs[0])
    else:
        number, other = _by_number(e, rounding)
        if number is None:
            return None
        zero, rounding = number, e.producer(other)
    steps = _made(e, rounding.inputs[0], "Mul") if rounding is not None and rounding.op == "Round" else None
    if steps is None:
        return None
    for x, factor in (steps.inputs, steps.inputs[::-1]):
        inverse = _made(e, factor, "Div")
        scales = None if inverse is None or e.scalar(inverse.inputs[0]) != 1.0 else _made(e, inverse.inputs[1], "Mul")
        if scales is None or e.value(x).dtype != "float32":
            continue
        step, largest = _by_number(e, scales)
        most = _made(e, largest, "Max")
        least, most_name = (None, "") if most is None else _by_number(e, most)
        if step is None or least is None or not _is_largest(e, most_name, x):
            continue
        return x, scales, {"to": to, "zero": zero, "step": step, "least": least}
    return None


def _is_largest(e: Editor, name: str, x: str) -> bool:
    """Whether a value is the largest magnitude of each row of `x`."""
    node = _made(e, name, "ReduceMax")
    magnitudes = None if node is None else _made(e, node.inputs[0], "Abs")
    if node is None or magnitudes is None or magnitudes.inputs[0] != x or not node.attrs.get("keepdims", 1):
        return False
    axes = e.data(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return axes is not None and [int(k) % len(e.shape(x)) for k in axes.reshape(-1)] == [len(e.shape(x)) - 1]


def _made(e: Editor, name: str, op: str) -> Node | None:
    node = e.producer(name) if name else None
    return node if node is not None and node.op == op else None


def _by_number(e: Editor, node: Node) -> tuple[float | None, str]:
    """The one number among the inputs of a node of two, and the other input."""
    numbers = [(e.scalar(x), other) for x, other in (node.inputs, node.inputs[::-1])] if len(node.inputs) == 2 else []
    return next(((number, other) for number, other in numbers if number is not None), (None, ""))
