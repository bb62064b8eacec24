"""How one variant of a package was made: what its kernels are judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.graph import Graph
from modelc.ir.nest import Nest, phase_regions
from modelc.ir.program import Program
from modelc.verify.kernels.calls import Phases
from modelc.verify.kernels.order import order_of
from modelc.verify.kernels.rounding import Array


@dataclass(frozen=True)
class Scheduled:
    """A Task and its schedule, under canonical names: `phases` are the buffers that each step of its kernel takes."""

    task: Task
    candidate: Candidate
    derived: Task
    phases: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, task: Task, candidate: Candidate, derived: Task, nest: Nest) -> Scheduled:
        phases = tuple(tuple(region.name for region in phase_regions(nest, phase)) for phase in nest.phases)
        return cls(task, candidate, derived, phases)

    def order_of(self, block: Block) -> Array | None:
        """In which order the kernel adds up a reduction of the derived Task (order.py)."""
        return order_of(block, self.candidate.blocks.get(block.name))


@dataclass(frozen=True)
class Blueprint:
    """The imported `graph` of a variant, the `program` that was made of it, and how its Tasks were `scheduled`, by the
    Task's hash."""

    graph: Graph
    program: Program
    scheduled: Mapping[str, Scheduled]

    @cached_property
    def phases(self) -> Phases:
        return {key: scheduled.phases for key, scheduled in self.scheduled.items()}
