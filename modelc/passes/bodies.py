"""The bodies of control flow are Graphs, and simplified as such: what they capture that is constant becomes a constant
of theirs before, and what they do not read any more is not captured after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from modelc.ir.control import captured
from modelc.ir.graph import Graph, Node


def with_bodies(graph: Graph, simplified: Callable[[Graph], Graph]) -> Graph:
    """`graph` with every body `simplified`; what that has to say is said of the whole."""
    nodes, notes = list[Node](), dict.fromkeys(graph.notes)
    for node in graph.nodes:
        if node.bodies:
            node = _trimmed(_with_constants(graph, node))
            node = _trimmed(replace(node, bodies=tuple(map(simplified, node.bodies))))
            notes |= dict.fromkeys(note for body in node.bodies for note in body.notes)
            node = replace(node, bodies=tuple(replace(body, notes=()) for body in node.bodies))
        nodes.append(node)
    return replace(graph, notes=tuple(notes)).with_nodes(nodes)


def _with_constants(graph: Graph, node: Node) -> Node:
    """The node whose bodies know the constants that they capture. They stay inputs of it, which are read by nobody."""
    at, inside = captured(node.op, node.attrs)
    bodies = []
    for body in node.bodies:
        values, inputs = dict(body.values), list(body.inputs)
        for outer, name in zip(node.inputs[at:], body.inputs[inside:], strict=True):
            data = graph.value(outer).data
            if data is None:
                continue
            unread = body.fresh(f"{name}_given", values)
            inputs[body.inputs.index(name)] = unread
            values[unread] = replace(values[name], name=unread)
            values[name] = replace(values[name], data=data)
        bodies.append(replace(body, inputs=tuple(inputs), values=values))
    return replace(node, bodies=tuple(bodies))


def _trimmed(node: Node) -> Node:
    """The node without captured values that none of its bodies reads."""
    at, inside = captured(node.op, node.attrs)
    read = [{x for n in body.nodes for x in n.inputs} | set(body.outputs) for body in node.bodies]
    kept = [
        k
        for k in range(len(node.inputs) - at)
        if any(body.inputs[inside + k] in names for body, names in zip(node.bodies, read, strict=True))
    ]
    bodies = []
    for body in node.bodies:
        inputs = (*body.inputs[:inside], *(body.inputs[inside + k] for k in kept))
        bodies.append(replace(body, inputs=inputs).with_nodes(body.nodes))
    return replace(node, inputs=(*node.inputs[:at], *(node.inputs[at + k] for k in kept)), bodies=tuple(bodies))
