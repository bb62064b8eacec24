"""Graph -> Program: Pieces, the layouts that their values have, the Tasks that they make, conversions between them."""

from __future__ import annotations

from dataclasses import replace

from modelc.errors import ModelError
from modelc.frontend.limits import LARGEST_TENSOR
from modelc.ir.graph import Graph
from modelc.ir.program import Program, verify_program
from modelc.layout.choice import LayoutPolicy, choose
from modelc.layout.convert import LayoutChoice, converted
from modelc.partition.draft import Prepared, drafting, prepared


def partition(graph: Graph | Prepared, attention_bytes: int = 0, choice: LayoutChoice | None = None) -> Program:
    """The Program that computes what `graph` does. Attention becomes one Task where its rows of scores fit into
    `attention_bytes` of cache. Values are stored as `choice` says; by rule without one. Raises ModelError for an
    unknown operator."""
    ready = graph if isinstance(graph, Prepared) else prepared(graph)
    draft = drafting(attention_bytes)
    choice = choice or choose(ready.graph, ready.pieces, draft, LayoutPolicy())
    graph, pieces, layouts = converted(ready.graph, ready.pieces, choice)
    program = draft(graph, pieces, layouts).program(graph)
    program = replace(program, notes=(*graph.notes, *ready.notes))
    verify_program(program, "partition")
    return program


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
