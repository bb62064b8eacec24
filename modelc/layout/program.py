"""Graph -> Program: Pieces, the layouts that their values have, the Tasks that they make, conversions between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modelc.errors import ModelError
from modelc.frontend.building.limits import LARGEST_TENSOR
from modelc.ir.graph import Graph
from modelc.ir.program import Program, verify_program
from modelc.layout.choice import LayoutPolicy, choose
from modelc.layout.convert import LayoutChoice, converted
from modelc.partition.draft import Prepared, drafting, prepared
from modelc.partition.pieces import Piece


@dataclass(frozen=True)
class Like:
    """A Graph at other sizes, and what it was cut into: attention is one Task where it is there, and values of bodies
    are stored by rule as they are there."""

    graph: Graph
    program: Program

    @property
    def tasks(self) -> tuple[frozenset[str], ...]:
        """The nodes of each Task."""
        return tuple(frozenset(bound.task.nodes) for bound in self.program.tasks)

    def body(self, name: str) -> Like | None:
        """The same of a body of control flow."""
        graph = next((body for node in self.graph.nodes for body in node.bodies if body.name == name), None)
        program = next((body for bound in self.program.tasks for body in bound.bodies if body.name == name), None)
        return None if graph is None or program is None else Like(graph, program)


def partition(
    graph: Graph | Prepared, attention_bytes: int = 0, choice: LayoutChoice | None = None, like: Like | None = None
) -> Program:
    """The Program that computes what `graph` does. Attention becomes one Task where its rows of scores fit into
    `attention_bytes` of cache, or where it is one in `like`. Values are stored as `choice` says; by rule without one.
    Raises ModelError for an unknown operator."""
    ready = graph if isinstance(graph, Prepared) else prepared(graph)
    choice = choice or choose(ready.graph, ready.pieces, drafting(attention_bytes), LayoutPolicy())
    draft = drafting(attention_bytes, choice.cuts, like.tasks if like else None)
    graph, pieces, layouts = converted(ready.graph, ready.pieces, choice)
    made = draft(graph, pieces, layouts)
    program = made.program(graph)
    bodies = (
        tuple(_body(b, attention_bytes, like.body(b.name) if like else None) for b in _bodies(group))
        for group in made.groups
    )
    tasks = tuple(replace(bound, bodies=own) for bound, own in zip(program.tasks, bodies, strict=True))
    program = replace(program, tasks=tasks, notes=(*graph.notes, *ready.notes))
    verify_program(program, "partition")
    return program


def _bodies(group: Sequence[Piece]) -> tuple[Graph, ...]:
    """Those of the control flow that a Task is; copies of its operands are Tasks of their own."""
    return group[0].node.bodies if group[0].opaque else ()


def _body(graph: Graph, attention_bytes: int, like: Like | None) -> Program:
    """The Program of a body of control flow; its values are stored as the rule says, of `like` if that is there."""
    choice = choose_layouts(like.graph if like else graph, LayoutPolicy())
    return replace(partition(graph, attention_bytes, choice, like), notes=())


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
