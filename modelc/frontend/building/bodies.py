"""What was imported of the bodies of an If or a Loop, and the Node that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.graph import Graph, Node

BRANCHES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class Body:
    """What was imported of a body: its nodes, and the Graph's names of what it is given and of what it gives, which are
    copies of its `originals`."""

    nodes: tuple[Node, ...]
    given: tuple[str, ...]
    results: tuple[str, ...]
    originals: tuple[str, ...]

    def captured(self, b: Builder) -> list[str]:
        """What it reads from outside that is no constant."""
        own = {*self.given, *(x for node in self.nodes for x in node.outputs)}
        read = dict.fromkeys(x for node in self.nodes for x in node.inputs if x)
        return [x for x in read if x not in own and b.data(x) is None]


def emit_control(
    b: Builder,
    node: OnnxNode,
    op: str,
    inputs: Sequence[str],
    bodies: Sequence[Body],
    attrs: Mapping[str, int | str] | None = None,
    outputs: Sequence[str] | None = None,
) -> None:
    """Adds the Node; what its bodies capture, all of them together, follows `inputs`."""
    shared = list(dict.fromkeys(x for body in bodies for x in body.captured(b)))
    graphs = []
    for k, body in enumerate(bodies, 1 - int((attrs or {}).get("only", 1))):
        used = {x for n in body.nodes for x in (*n.inputs, *n.outputs) if x}
        names = dict.fromkeys((*body.given, *shared, *body.results, *sorted(used)))
        values = {name: b.value(name) for name in names}
        name = f"{node.name}/{BRANCHES[k] if op == 'If' else 'body'}"
        graphs.append(Graph(name, (*body.given, *shared), body.results, values, body.nodes))
    b.emit(node, op, (*inputs, *shared), attrs, node.outputs if outputs is None else outputs, tuple(graphs))
