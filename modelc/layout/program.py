"""Graph -> Program: Pieces, the layouts that their values have, the Tasks that they make, conversions between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from modelc.errors import ModelError
from modelc.frontend.building.limits import LARGEST_TENSOR
from modelc.ir.graph import Graph
from modelc.ir.program import Program, verify_program
from modelc.layout.choice import LayoutPolicy, choose
from modelc.layout.convert import LayoutChoice, converted
from modelc.partition.draft import Prepared, drafting, prepared
from modelc.partition.pieces import Piece


def partition(
    graph: Graph | Prepared,
    attention_bytes: int = 0,
    choice: LayoutChoice | None = None,
    like: Graph | None = None,
) -> Program:
    """The Program that computes what `graph` does. Attention becomes one Task where its rows of scores fit into
    `attention_bytes` of cache. Values are stored as `choice` says; by rule without one. Those of bodies are stored by
    rule, as in `like`: the same Graph at other sizes. Raises ModelError for an unknown operator."""
    ready = graph if isinstance(graph, Prepared) else prepared(graph)
    usual = {body.name: body for node in (like or ready.graph).nodes for body in node.bodies}
    choice = choice or choose(ready.graph, ready.pieces, drafting(attention_bytes), LayoutPolicy())
    draft = drafting(attention_bytes, choice.cuts)
    graph, pieces, layouts = converted(ready.graph, ready.pieces, choice)
    made = draft(graph, pieces, layouts)
    program = made.program(graph)
    bodies = (tuple(_body(b, attention_bytes, usual.get(b.name, b)) for b in _bodies(group)) for group in made.groups)
    tasks = tuple(replace(bound, bodies=own) for bound, own in zip(program.tasks, bodies, strict=True))
    program = replace(program, tasks=tasks, notes=(*graph.notes, *ready.notes))
    verify_program(program, "partition")
    return program


def _bodies(group: Sequence[Piece]) -> tuple[Graph, ...]:
    """Those of the control flow that a Task is; copies of its operands are Tasks of their own."""
    return group[0].node.bodies if group[0].opaque else ()


def _body(graph: Graph, attention_bytes: int, like: Graph) -> Program:
    """The Program of a body of control flow; its values are stored as the rule says of `like`."""
    return replace(partition(graph, attention_bytes, choose_layouts(like, LayoutPolicy()), like), notes=())


def choose_layouts(graph: Graph | Prepared, policy: LayoutPolicy, attention_bytes: int = 0) -> LayoutChoice:
    """How partition() is to store the values of `graph`."""
    ready = graph if isinstance(graph, Prepared) else prepared(graph)
    return choose(ready.graph, ready.pieces, drafting(attention_bytes), policy)


def check_storage(program: Program) -> None:
    """Raises ModelError where layouts make a value larger than kernels can count."""
    for value in program.values.values():
        if value.elements > LARGEST_TENSOR:
            raise ModelError(
                f"value {value.name!r} {list(value.shape)} is stored in {value.elements} elements; expected at most "
                f"{LARGEST_TENSOR}"
            )
