"""The layout stage, by cost: layouts of the whole graph chosen with what each Task costs in them (ALT, 4 to 6).

A variable for every class of values that are tied element by element (classes.py); its values are the Layouts that the
class may have. A complex operator may also read a value through a conversion: a variable for every value that windows
slide over or channels are contracted from. A table for every Task: the seconds of the schedule that it will get, in the
precision that is asked for and with the layouts around it. Where moves (reshapes, transpositions) turn from views into
copies with a layout, a table says so (propagated.py). The least sum is found by elimination (elimination.py), which is
exact for chains and for graphs with residuals, with estimates that are made in earnest where they decide (costs.py).

The model's boundary, constants and operands of opaque Blocks stay row-major.

Without propagation (ALT-WP), values stay row-major, and a complex operator that wants another layout is put between
conversions of its own (separate.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from modelc.ir.block import Block
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.layout.convert import LayoutChoice, converted
from modelc.layout.costs import Cost, Tables
from modelc.layout.propagated import Propagated
from modelc.layout.rules import layouts_by_rule, seeds
from modelc.layout.separate import Separate
from modelc.partition.draft import Drafting
from modelc.partition.pieces import Piece
from modelc.partition.precision import Narrowing, to_narrow, writing_tasks


class Variables(Protocol):
    """Few-valued variables, so many values each, and tables of what their assignments cost."""

    sizes: list[int]

    @property
    def tables(self) -> Tables: ...

    def choice(self, values: Sequence[int]) -> LayoutChoice: ...

    def values(self, choice: LayoutChoice) -> tuple[int, ...]: ...

    def says(self, v: int, value: int) -> str: ...


@dataclass(frozen=True)
class LayoutPolicy:
    """How layouts are chosen. `search`: not at all (all row-major) or so that `cost`, the seconds of a Task as its
    boundary is stored, is least; by rule where there is no cost. `propagate`: through maps, or at complex operators
    alone, with conversions around each. `lanes`: of a vector, by which layouts split a dimension; 0: none does.
    `doubt`: the error of `cost`, as a part of it: a Task around which a layout is not the rule's, or a value is
    converted, has to be cheaper by as much. `all_splits`: every class is offered layouts that split a dimension, and
    not only where these promise as much. `narrowing`: which contractions are in what; None: all are in float32."""

    cost: Cost | None = None
    search: bool = True
    propagate: bool = True
    lanes: int = 0
    doubt: float = 0.0
    all_splits: bool = False
    narrowing: Narrowing | None = None

    def variables(self, graph: Graph, pieces: list[Piece], draft: Drafting) -> Variables:
        """What there is to choose, where there is a cost."""
        assert self.cost is not None
        if not self.propagate:
            return Separate(graph, pieces, draft, self.cost, self.narrowing)
        return Propagated(graph, pieces, draft, self.cost, self.lanes, self.doubt, self.all_splits, self.narrowing)


def choose(graph: Graph, pieces: list[Piece], draft: Drafting, policy: LayoutPolicy) -> LayoutChoice:
    """How the values of `graph` are stored, as `policy` says."""
    if not policy.search:
        return LayoutChoice()
    rule = LayoutChoice(layouts_by_rule(graph, pieces))
    if policy.cost is None:
        return rule
    variables = policy.variables(graph, pieces, draft)
    seeded = any(seeds(b) for p in pieces for b in p.blocks if isinstance(b, Block))
    if isinstance(variables, Propagated) and not variables.classes and not seeded:
        return rule  # there is nothing to weigh
    tables = variables.tables
    choice = variables.choice(tables.least(variables.sizes, [0] * len(variables.sizes)).values)
    if not policy.propagate:
        return choice

    def seconds(choice: LayoutChoice) -> float:
        assert policy.cost is not None
        changed, conversions, layouts = converted(graph, pieces, choice)
        program = in_precision(draft(changed, conversions, layouts).program(changed), policy.narrowing)
        computed = [bound.task for bound in program.tasks if all(isinstance(b, Block) for b in bound.task.blocks)]
        policy.cost.prepare(computed, True)
        return sum(map(policy.cost.seconds, computed))

    return choice if choice != rule and seconds(choice) < seconds(rule) else rule


def in_precision(program: Program, narrowing: Narrowing | None) -> Program:
    """`program` with contractions as `narrowing` says; None: as it is. Sums in float16 are not cut: what their parts
    cost is little."""
    if narrowing is None:
        return program
    return to_narrow(program, writing_tasks(program, narrowing.wide, narrowing.dtype), narrowing.dtype)
